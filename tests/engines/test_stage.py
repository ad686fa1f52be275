"""A stage is the model's own layers: the same names and first values however it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage, build_stage, layer_seed
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.training.setup import set_up
from tests.tools.cells import gat, vig

MODELS = [
    vig(model=vig().model.model_copy(update={"implementation": "reference"})),
    gat(model={"name": "gat", "layers": 3, "implementation": "reference"}),
    gat(model={"name": "gat", "layers": 3}),
    vig(),
]
every_model = pytest.mark.parametrize(
    "experiment", MODELS, ids=lambda e: f"{e.model.name} {e.model.implementation}"
)


def stages(experiment: Experiment, layout: str) -> list[Stage]:
    timer = StepTimer(torch.device("cpu"))
    layers = experiment.model.outline(experiment.data.facts())
    parts = cut(experiment.model_copy(update={"layout": Layout.parse(layout)}))
    return [build_stage(experiment, layers, [part], timer) for part in parts]


def state(built: list[Stage]) -> dict[str, Tensor]:
    return {name: tensor for stage in built for name, tensor in stage.state_dict().items()}


@every_model
def test_first_values_do_not_depend_on_the_cut(experiment: Experiment) -> None:
    whole, cut_up = state(stages(experiment, "seq")), state(stages(experiment, "pp4"))
    assert list(whole) == list(cut_up)
    assert all(whole[name].equal(cut_up[name]) for name in whole)


@every_model
def test_each_layer_has_the_outlines_parameters_under_its_name(experiment: Experiment) -> None:
    (stage,) = stages(experiment, "seq")
    for layer in stage.outlines:
        module = stage.get_submodule(layer.name)
        assert sum(p.numel() for p in module.parameters()) == layer.parameters


def test_another_seed_gives_other_values_and_building_draws_from_nobody() -> None:
    before = torch.get_rng_state()
    first, other = (state(stages(gat(seed=seed), "seq")) for seed in (0, 1))
    assert torch.get_rng_state().equal(before)
    assert any(not first[name].equal(other[name]) for name in first)


def test_both_implementations_begin_with_the_same_values() -> None:
    for fused, reference in ((MODELS[2], MODELS[1]), (MODELS[3], MODELS[0])):
        ours, theirs = state(stages(fused, "seq")), state(stages(reference, "seq"))
        assert ours.keys() == theirs.keys()
        assert all(ours[name].equal(theirs[name]) for name in ours)


def test_seeds_of_layers_never_change() -> None:
    """Checkpoints do not need them, but published losses do."""
    assert layer_seed(0, "block0.grapher") == 13_947_324_011_667_947
    assert layer_seed(1, "block0.grapher") != layer_seed(0, "block0.grapher")
    assert layer_seed(0, "block1.grapher") != layer_seed(0, "block0.grapher")


def test_a_layer_that_hands_its_input_on_takes_no_ones_backward() -> None:
    """Without dropout ELU's output is the next dropout's too; its backward is ELU's."""
    experiment = gat(model={"name": "gat", "dropout": 0.0}, microbatches=1)
    mesh = Mesh(Layout(), 0, torch.device("cpu"))
    parts = set_up(experiment, mesh, None)
    with parts.batches.open("train", 0, 1) as batches:
        for batch in batches:
            parts.timer.start()
            parts.engine.train_step(batch)
    layers = parts.timer.stop().layers
    assert layers["layer0.elu"][1] > 0
    assert layers["layer1.dropout"][1] == 0


def test_a_layer_costs_one_mark_forward_and_one_backward() -> None:
    """On a GPU each is an event in the stream: some of them cannot be had for nothing."""
    experiment = MODELS[0].model_copy(update={"microbatches": 1})
    parts = set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), None)
    clock, made = parts.timer.clock, []
    mark = clock.mark
    clock.mark = lambda: made.append(mark()) or made[-1]  # type: ignore[method-assign]
    with parts.batches.open("train", 0, 1) as batches:
        batch = next(iter(batches))
        parts.timer.start()
        parts.engine.train_step(batch)
    of_spans, of_the_ends = 2 * len(parts.timer.stop().spans), 2
    assert len(made) == 2 * len(parts.outlines) + of_spans + of_the_ends

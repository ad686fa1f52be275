"""A stage is the model's own layers: the same names and first values however it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnhpc.core.layout import Layout
from gnnhpc.engines.stage import Stage, build_stage, layer_seed
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from tests.tools.cells import gat, vig

MODELS = [
    vig(model=vig().model.model_copy(update={"implementation": "pyg"})),
    gat(model={"name": "gat", "layers": 3, "implementation": "pyg"}),
    gat(model={"name": "gat", "layers": 3}),
    vig(),
]


def stages(experiment: Experiment, layout: str) -> list[Stage]:
    timer = StepTimer(torch.device("cpu"))
    layers = experiment.model.outline(experiment.data.facts())
    parts = cut(experiment.model_copy(update={"layout": Layout.parse(layout)}))
    return [build_stage(experiment, layers, [part], timer) for part in parts]


def state(built: list[Stage]) -> dict[str, Tensor]:
    return {name: tensor for stage in built for name, tensor in stage.state_dict().items()}


@pytest.mark.parametrize(
    "experiment", MODELS, ids=lambda e: f"{e.model.name} {e.model.implementation}"
)
def test_first_values_do_not_depend_on_the_cut(experiment: Experiment) -> None:
    whole, cut_up = state(stages(experiment, "seq")), state(stages(experiment, "pp4"))
    assert list(whole) == list(cut_up)
    assert all(whole[name].equal(cut_up[name]) for name in whole)


def test_seeds_of_layers_never_change() -> None:
    """Checkpoints do not need them, but published losses do."""
    assert layer_seed(0, "block0.grapher") == 13_947_324_011_667_947
    assert layer_seed(1, "block0.grapher") != layer_seed(0, "block0.grapher")
    assert layer_seed(0, "block1.grapher") != layer_seed(0, "block0.grapher")

"""Where a gradient is rounding alone, no sound code is accused, and what is wrong still is."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gnnhpc.check.compare_gradients import TOLERANCE, Array, differences
from gnnhpc.check.compare_steps import EPS
from gnnhpc.check.lost_in_rounding import lost_in_rounding
from gnnhpc.check.rounding_draws import ROUNDING_FACTOR
from gnnhpc.check.twin.backward_rounding import BackwardRounding, gelu, log_softmax
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.pieces import Piece, image_pieces
from gnnhpc.check.twin.plain_model import PlainModel, plain_layer
from gnnhpc.check.twin.raw_images import raw_images
from gnnhpc.check.twin.training import train_step
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.records.schema import Check
from tests.tools.cells import Ran, manifest_of, run, vig

SURE = vig(
    model={
        "name": "vig",
        "blocks": 4,
        "grapher_width": 8,
        "ffn_width": 16,
        "readout_width": 16,
    },
    data={"name": "synthetic-cifar10", "image_size": 13, "train": 71, "test": 63},
    layout="pp3",
    engine="pipelining",
    batch_size=2,
    microbatches=1,
    train_steps=10,
    optimizer={"name": "adam", "weight_decay": 5e-4},
    batchnorm="deferred",
    seed=744980,
)
"""Its initial values are sure of the label of both images of the first step: the loss is 4e-10."""


@pytest.mark.parametrize("draw", range(4))
def test_outputs_are_those_without_it(draw: int) -> None:
    x = 4 * torch.randn(50, 7, generator=torch.Generator().manual_seed(1)).double()
    for function in (gelu, log_softmax):
        assert torch.equal(function(x, BackwardRounding(1e-7, draw)), function(x, None))


def moved(function: Any, x: torch.Tensor, arriving: torch.Tensor, eps: float) -> torch.Tensor:
    """By how much one draw moves the derivative by x."""
    gradients = []
    for rounding in (BackwardRounding(eps, 0), None):
        leaf = x.clone().requires_grad_()
        function(leaf, rounding).backward(arriving)
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    return gradients[0] - gradients[1]


def test_torchs_gelu_is_off_by_no_more_than_its_terms_round() -> None:
    x = torch.linspace(-12, 12, 20_001)
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    F.gelu(ours).sum().backward()
    gelu(exact, None).sum().backward()
    assert ours.grad is not None
    assert exact.grad is not None
    away = (ours.grad.double() - exact.grad).abs()
    allowed = moved(gelu, x.double(), torch.ones(len(x)).double(), EPS["float32"]).abs()
    assert float((away / allowed).max()) < ROUNDING_FACTOR
    # Relative to the derivative itself no factor would do.
    assert float((away / exact.grad.abs())[x < -7].max()) > 0.5


def test_torchs_cross_entropy_is_off_by_no_more_than_its_terms_round() -> None:
    """From rows that know nothing to those that are sure of their label, or of another."""
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(400, 10, generator=draws) * torch.logspace(-2, 2, 400)[:, None]
    labels = torch.where(torch.arange(400) % 2 == 0, x.argmax(1), 3)
    arriving = F.one_hot(labels, 10).double().neg()
    ours, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    F.cross_entropy(ours, labels, reduction="sum").backward()
    log_softmax(exact, None).backward(arriving)
    assert ours.grad is not None
    assert exact.grad is not None
    away = (ours.grad.double() - exact.grad).abs()
    allowed = moved(log_softmax, x.double(), arriving, EPS["float32"]).abs()
    assert bool((away <= ROUNDING_FACTOR * allowed + 1e-37).all())
    sure = (exact.grad.abs() < 1e-9) & (exact.grad != 0) & (arriving != 0)
    assert float((away / exact.grad.abs())[sure].max()) > 0.5


class Step:
    """One step of a run's own layers in one process, and of the twin, from changed values."""

    def __init__(self, experiment: Experiment, change: Any = dict) -> None:
        outlines = outline(experiment)
        layers = [plain_layer(experiment.model, each) for each in outlines]
        self.layers = [each.name for each in outlines]
        self.twin = PlainModel(experiment, outlines, [each for each in layers if each is not None])
        self.pieces: list[Piece] = image_pieces(
            experiment, *raw_images(experiment.data, None, "train"), "train", 0
        )
        initial = {name: v.double().numpy() for name, v in self.twin.initial().items()}
        self.before: dict[str, Array] = change(initial)
        own = OwnModelTwin(experiment, outlines)
        self.ours = train_step(own, self.pieces, self.before, 0, "logits").gradients
        self.exact = train_step(self.twin, self.pieces, self.before, 0, "logits")

    def lost(self) -> dict[str, float]:
        return lost_in_rounding(
            self.twin,
            self.pieces,
            self.before,
            0,
            "logits",
            self.exact,
            self.layers,
            EPS["float32"],
        )

    def relative(self, ours: dict[str, Array]) -> dict[str, float]:
        compared = differences(ours, self.exact.gradients, self.layers)
        return {each.layer: each.relative for each in compared}


def dead_readout(values: dict[str, Array]) -> dict[str, Array]:
    """All units of the readout are near -9, where GELU's derivative is 1e-17."""
    return values | {
        "readout.fc1.weight": values["readout.fc1.weight"] * 1e-3,
        "readout.fc1.bias": values["readout.fc1.bias"] * 0.1 - 9.0,
    }


def test_units_far_below_zero() -> None:
    """Torch's GELU loses their derivative; the kernel's has it."""
    model = {"name": "vig", "blocks": 2, "grapher_width": 8, "ffn_width": 16, "readout_width": 16}
    step = Step(vig(model=model | {"implementation": "reference"}), dead_readout)
    relative, lost = step.relative(step.ours), step.lost()
    for layer in step.layers[:-1]:
        assert relative[layer] > 0.5, layer
        assert relative[layer] < ROUNDING_FACTOR * lost[layer], layer
    # Most of the readout's own gradient is of its last bias, which nothing hides.
    assert relative["readout"] < TOLERANCE["float32"]
    assert lost["readout"] < 1e-3


def test_what_is_more_than_rounding_is_not_allowed() -> None:
    """Where the readout is alive, blocks have gradients of 1e-2; here they should have 1e-18."""
    alive = Step(vig()).exact.gradients
    step = Step(vig(), dead_readout)
    relative, lost = step.relative({n: g * 1e-3 for n, g in alive.items()}), step.lost()
    assert all(relative[each] > ROUNDING_FACTOR * lost[each] for each in step.layers)


def test_it_allows_next_to_nothing_where_gradients_are_what_they_should_be() -> None:
    lost = Step(vig()).lost()
    assert max(lost.values()) < TOLERANCE["float32"] / ROUNDING_FACTOR
    assert all(math.isfinite(each) and each > 0 for each in lost.values())


def test_running_statistics_are_left_alone() -> None:
    step = Step(vig())
    before = {n: b.clone() for n, b in step.twin.buffers(0).items()}
    step.lost()
    assert all(torch.equal(before[n], b) for n, b in step.twin.buffers(0).items())


def off_by(what: float, layer: str, number: int) -> None:
    """One gradient of a layer is off by a fixed amount in one stage."""
    from gnnhpc.train.setup import TrainingParts

    true = TrainingParts.__init__

    def made(parts: Any, *args: Any, **given: Any) -> None:
        true(parts, *args, **given)
        for name, parameter in parts.stage.named_parameters():
            if name == layer and parameter.shape[0] > number:
                parameter.register_hook(lambda gradient: gradient + what)

    TrainingParts.__init__ = made  # type: ignore[method-assign]


def self_check_of(folder: Path, experiment: Experiment, plant: Any = None) -> Check:
    (cell,) = manifest_of(folder, experiment)
    found: Ran = run(folder, cell, plant=plant)
    assert set(found.statuses) == {0} or plant is not None, found.err
    (check,) = [each for each in found.result.audit if each.name == "self-check"]
    return check


@pytest.mark.distributed
def test_a_run_that_is_sure_of_its_labels_is_not_accused(tmp_path: Path) -> None:
    check = self_check_of(tmp_path, SURE)
    assert check.verdict == "ok", check.detail
    assert "readout" in check.values["lost_in_rounding"]
    assert "but for what rounding hides of the gradient of " in check.detail


@pytest.mark.quick("readout.fc2.bias")
@pytest.mark.distributed
@pytest.mark.parametrize("layer", ["readout.fc2.bias", "block1.ffn.fc1.weight"])
def test_a_wrong_gradient_of_such_a_run_is_named(tmp_path: Path, layer: str) -> None:
    """Small beside what a gradient of this model is otherwise, 1e2."""
    check = self_check_of(tmp_path, SURE, functools.partial(off_by, 1e-2, layer, 0))
    assert check.verdict == "invalid"
    assert check.detail.startswith(f"gradients: {layer.rsplit('.', 2)[0]} differs by ")

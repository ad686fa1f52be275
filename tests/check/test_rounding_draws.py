"""Where one draw of rounding is too few, more are taken, and what is wrong is still named."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.check.capture import SeenActivation, signs, sketch
from gnnhpc.check.check_slice import check_slice
from gnnhpc.check.compare_activations import Place, compare_activations, difference_at
from gnnhpc.check.compare_gradients import differences
from gnnhpc.check.process_state import one_thread
from gnnhpc.check.rounding_draws import DRAWS, ROUNDING_FACTOR, RoundingDraws
from gnnhpc.check.self_check import twin_of
from gnnhpc.check.twin.data import TwinImages
from gnnhpc.check.twin.forward_rounding import ForwardRounding, RoundedLayer
from gnnhpc.check.twin.layer import plain_mean
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.plain_model import PlainModel
from gnnhpc.check.twin.scene import SparseInput, TwinGraph
from gnnhpc.check.twin.training import TwinStep, train_step
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.tools.cells import Ran, gat, manifest_of, run, vig
from tests.tools.forked import Plant

AMPLIFYING = vig(
    model={
        "name": "vig",
        "blocks": 4,
        "grapher_width": 8,
        "ffn_width": 16,
        "readout_width": 7,
    },
    data={"name": "synthetic-cifar10", "image_size": 13, "train": 119, "test": 75},
    layout="pp4",
    schedule="1f1b",
    batch_size=3,
    microbatches=1,
    train_steps=3,
    test_steps=0,
    optimizer={"name": "sgd", "lr": 0.001, "weight_decay": 5e-4},
    batchnorm="deferred",
    seed=741757,
)
"""One common rounding of its outputs changes gradients by 1e-4, the twin's own sums by 8e-6."""


def step_of(model: PlainModel) -> TwinStep:
    """The first step of its self-check, in one process."""
    part = check_slice(AMPLIFYING)
    before = {name: v.double().numpy() for name, v in model.initial().items()}
    with one_thread():
        return train_step(model, TwinImages(part, None).pieces("train", 0), before, 0, "logits")


def away(drawn: TwinStep, exact: TwinStep) -> float:
    layers = [outline.name for outline in check_slice(AMPLIFYING).outlines]
    return max(d.relative for d in differences(drawn.gradients, exact.gradients, layers))


def twins() -> tuple[PlainModel, PlainModel]:
    twin, single = twin_of(check_slice(AMPLIFYING))
    assert isinstance(twin, PlainModel)
    assert single is not None
    return twin, single


def test_a_few_draws_allow_for_any_other() -> None:
    twin, single = twins()
    exact = step_of(twin)
    draws = RoundingDraws.of(single, step_of)
    of = functools.partial(away, exact=exact)
    largest = max(of(each) for each in draws.more)
    others = [of(step_of(single.rounded(draw))) for draw in range(DRAWS, DRAWS + 8)]
    assert max(others) < ROUNDING_FACTOR * largest
    assert 0 < draws.allowed(max(others), 0.0, of) <= ROUNDING_FACTOR * largest


def test_no_more_draws_are_taken_of_what_the_first_explains() -> None:
    _, single = twins()
    computed: list[PlainModel] = []

    def compute(model: PlainModel) -> float:
        computed.append(model)
        return 1e-6 if model is single else 3e-6

    draws = RoundingDraws.of(single, compute)
    assert draws.allowed(8e-6, 1e-9, float) == pytest.approx(8e-6)
    assert draws.allowed(1e-5, 1e-5, float) == 1e-5
    assert computed == [single]
    assert draws.allowed(1e-5, 1e-9, float) == pytest.approx(24e-6)
    assert draws.allowed(float("nan"), 1e-9, float) == pytest.approx(24e-6)
    assert len(computed) == 1 + DRAWS
    assert all(each is not single for each in computed[1:])


def test_what_is_no_number_allows_nothing() -> None:
    _, single = twins()
    draws = RoundingDraws.of(single, lambda model: 1e-6 if model is single else float("nan"))
    assert draws.allowed(1.0, 0.0, float) == pytest.approx(8e-6)


@pytest.mark.parametrize("draw", range(3))
def test_an_output_is_off_by_one_rounding(draw: int) -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    error = (ForwardRounding(draw).of(x) - x) / x / torch.finfo(x.dtype).eps
    assert 0.4 < float(error.abs().min()) <= float(error.abs().max()) < 2.1
    larger = float((error > 0).float().mean())
    assert larger == 1.0 if draw == 0 else 0.3 < larger < 0.7


def test_features_that_are_stored_are_rounded_too() -> None:
    stored = SparseInput(torch.tensor([0]), torch.tensor([2]), torch.ones(1), (1, 3))

    class Same:
        def forward(self, x: Any, *_: Any) -> Any:
            return x

    layer: Any = Same()
    found = RoundedLayer(layer, ForwardRounding(0)).forward(stored, {}, scene=None)  # type: ignore[arg-type]
    assert isinstance(found, SparseInput)
    assert float(found.value) == 1.0 + 2.0**-23


def test_running_statistics_of_a_draw_are_its_own() -> None:
    _, single = twins()
    before = {name: b.clone() for name, b in single.buffers(0).items()}
    step_of(single.rounded(1))
    assert all(torch.equal(before[name], b) for name, b in single.buffers(0).items())


def scaled_gradient(factor: float, layer: str) -> None:
    """The gradient of one layer's parameters is a little too large."""
    from gnnhpc.train.setup import TrainingParts

    true = TrainingParts.__init__

    def made(parts: Any, *args: Any, **given: Any) -> None:
        true(parts, *args, **given)
        for name, parameter in parts.stage.named_parameters():
            if name.startswith(layer):
                parameter.register_hook(lambda gradient: gradient * factor)

    TrainingParts.__init__ = made  # type: ignore[method-assign]


def scaled_output(factor: float) -> None:
    from gnnhpc.models.vig.fused import FusedFfn

    true = FusedFfn.forward

    def wrong(layer: Any, *args: Any) -> torch.Tensor:
        return true(layer, *args) * factor

    FusedFfn.forward = wrong  # type: ignore[method-assign]


def self_check_of(
    folder: Path,
    plant: Plant | None = None,
    *,
    of: Experiment = AMPLIFYING,
    name: str = "self-check",
) -> Check:
    (cell,) = manifest_of(folder, of)
    found: Ran = run(folder, cell, plant=plant)
    (check,) = [each for each in found.result.audit if each.name == name]
    return check


SHARED_ERROR = vig(
    model={
        "name": "vig",
        "blocks": 3,
        "grapher_width": 3,
        "ffn_width": 5,
        "readout_width": 7,
        "implementation": "reference",
    },
    data={"name": "synthetic-cifar10", "image_size": 8, "train": 62, "test": 73},
    layout="dp2",
    batch_size=8,
    microbatches=2,
    train_steps=8,
    test_every=2,
    optimizer={"name": "adam", "lr": 0.005, "weight_decay": 5e-4},
    seed=903177,
)
"""Whose trained layers have outputs with one error for all images: 7e-6 of them, 3e-5 of their
sketches."""


@pytest.mark.slow
@pytest.mark.distributed
def test_an_error_that_all_images_share_is_not_accused(tmp_path: Path) -> None:
    check = self_check_of(tmp_path, of=SHARED_ERROR, name="last self-check")
    assert check.verdict == "ok", check.detail


def test_rounding_is_measured_as_a_run_is() -> None:
    """An error along the signs of a sketch is as many times as large there as it can be."""
    exact, width = torch.ones(4, 50), 50
    wrong = exact + 1e-3 * signs(width)[:, 0].float()
    seen = SeenActivation("train", 0, "layer", 0, 0, None, sketch(wrong).numpy())
    piece = Piece(exact, {}, 0, 0)
    (found,) = compare_activations([seen], "train", 0, "layer", [piece], [exact.double()])
    assert found.relative > 3 * float((wrong - exact).norm() / exact.norm())
    assert found.place is not None
    assert difference_at(found.place, [wrong], [exact.double()]) == pytest.approx(found.relative)


def test_rounding_is_measured_of_each_chunks_rows() -> None:
    """Of a whole graph, in one piece of the twin; padding has no row."""
    exact = torch.tensor([[1e-3], [1.0], [1.0], [2e-3]], dtype=torch.float64)
    wrong = (exact + torch.tensor([[1e-8], [0.0], [0.0], [4e-8]])).float()
    graph = TwinGraph(4, *torch.empty(3, 0, dtype=torch.int64))
    piece = Piece(exact, {}, 0, 0, graph=graph, ids=torch.arange(4))
    seen = [
        SeenActivation("train", 0, "layer", 0, m, np.array(ids), sketch(wrong[ids]).numpy())
        for m, ids in enumerate(([0, 3], [1, 2]))
    ]
    found = compare_activations(seen, "train", 0, "layer", [piece], [exact])
    places = [each.place for each in found]
    assert [(place.piece, place.rows.tolist()) for place in places if place] == [
        (0, [0, 3]),
        (0, [1, 2]),
    ]
    assert found[0].relative > 1e-5
    assert found[1].relative < 1e-6
    for each in found:
        assert isinstance(each.place, Place)
        assert difference_at(each.place, [wrong], [exact]) == pytest.approx(each.relative)


CANCELLING = gat(
    model={"name": "gat", "layers": 4, "heads": 1, "hidden": 2},
    data={"name": "synthetic-citation", "nodes": 122, "edges": 1222, "features": 16},
    layout="dp3",
    schedule="1f1b",
    microbatches=4,
    train_steps=9,
    test_every=3,
    optimizer={"name": "sgd", "lr": 0.005},
    chunks="clustered",
    seed=559144,
)
"""Of one chunk's outputs of layer1, dropout leaves one number: 0.005, a difference of two ones."""


@pytest.mark.slow
@pytest.mark.distributed
def test_what_dropout_leaves_of_a_few_rows_is_not_accused(tmp_path: Path) -> None:
    check = self_check_of(tmp_path, of=CANCELLING)
    assert check.verdict == "ok", check.detail


@pytest.mark.distributed
def test_a_run_that_makes_much_of_one_rounding_is_not_accused(tmp_path: Path) -> None:
    check = self_check_of(tmp_path)
    assert check.verdict == "ok", check.detail


@pytest.mark.quick("block2.ffn")
@pytest.mark.distributed
@pytest.mark.parametrize("layer", ["block2.ffn", "readout"])
def test_a_wrong_gradient_of_such_a_run_is_named(layer: str, tmp_path: Path) -> None:
    check = self_check_of(tmp_path, functools.partial(scaled_gradient, 1.002, layer))
    assert check.verdict == "invalid"
    assert check.detail.startswith(f"gradients: {layer} differs by ")


@pytest.mark.distributed
def test_a_wrong_output_of_such_a_run_is_named(tmp_path: Path) -> None:
    check = self_check_of(tmp_path, functools.partial(scaled_output, 1.0005))
    assert check.verdict == "invalid"
    assert check.detail.startswith("outputs: block0.ffn in train step 0")


def test_a_plain_mean_is_off_as_torchs_own_batchnorm() -> None:
    """By more than a pairwise one: its rows are added one after another."""
    x = 1e3 + torch.rand(4_096, 3, generator=torch.Generator().manual_seed(1))
    exact = x.double().mean(0)
    norm = torch.nn.BatchNorm1d(3, momentum=1.0)
    with one_thread():
        norm(x)
    assert norm.running_mean is not None
    off = [float((mean - exact).abs().max()) for mean in (plain_mean(x), norm.running_mean)]
    assert off[1] < 4 * off[0]
    assert float((x.mean(0) - exact).abs().max()) < off[0] / 8

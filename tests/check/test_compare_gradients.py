"""Held against its twin: what passes, what does not, and what a difference is said to look like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.check.compare_gradients import (
    TOLERANCE as ALLOWED,
)
from gnnhpc.check.compare_gradients import (
    Array,
    Losses,
    Verdict,
    differences,
    layer_of,
    likely_causes,
)

LAYERS = ["block0.grapher", "block0.ffn", "block1.grapher", "readout"]
STAGES = {"block0.grapher": 0, "block0.ffn": 0, "block1.grapher": 1, "readout": 1}


def tensors(seed: int = 0) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    return {
        f"{layer}.{name}": draw.normal(size=shape)
        for layer in LAYERS
        for name, shape in (("fc1.weight", (3, 4)), ("fc1.bias", (4,)))
    }


TOLERANCE = 1e-5


def test_the_tolerances_are_those_that_the_readme_tells() -> None:
    assert ALLOWED == {"float32": 1e-5, "float64": 1e-10}


def causes_of(
    gradients: Mapping[str, Array] | None = None,
    losses: Losses | None = None,
    tolerance: float = TOLERANCE,
) -> list[str]:
    """Of gradients, all of the twin's by default, in a run of 4 micro-batches on 2 replicas."""
    compared = differences(tensors() if gradients is None else gradients, tensors(), LAYERS)
    losses = losses or Losses(2.0, 2.0, ((3.0, 2.0), (1.0, 4.0)))
    return likely_causes(compared, losses, tolerance, 4, 2, STAGES)


def scaled(by: float, only: str = "") -> dict[str, Array]:
    return {k: v * by if k.startswith(only) else v for k, v in tensors().items()}


def only_cause(gradients: Mapping[str, Array], **given: Any) -> str:
    (cause,) = causes_of(gradients, **given)
    return cause


def test_a_verdict_passes_by_its_causes_alone() -> None:
    compared = differences(tensors(), tensors(), LAYERS)
    verdict = Verdict(TOLERANCE, 2.0, 2.0, compared, compared)
    assert verdict.passed
    assert verdict.worst == verdict.worst_parameters == 0
    assert [d.layer for d in verdict.gradients] == LAYERS
    assert not replace(verdict, causes=["labels: wrong"]).passed


def test_a_difference_is_relative_to_the_whole_layer() -> None:
    """A bias before a normalisation has a gradient of rounding alone, which nobody can match."""
    ours = {"a.weight": np.ones(100), "a.bias": np.array([1e-9]), "b.weight": np.ones(4)}
    twin = {"a.weight": np.ones(100), "a.bias": np.array([-1e-9]), "b.weight": np.ones(4)}
    first, second = differences(ours, twin, ["a", "b"])
    assert (first.layer, second.layer) == ("a", "b")
    assert first.relative == pytest.approx(2e-10)
    assert second.relative == 0


def test_layers_are_found_by_whole_names() -> None:
    assert layer_of("block1.ffn.fc1.weight", ["block1", "block1.ffn", "block11"]) == "block1"
    assert layer_of("block11.ffn.fc1.weight", ["block1", "block11"]) == "block11"
    assert layer_of("block1", ["block1"]) == "block1"


def test_a_tensor_we_do_not_have_counts_as_zero() -> None:
    (found,) = differences({}, {"a.weight": np.ones(3)}, ["a"])
    assert (found.relative, found.norm) == (1.0, 0.0)


def test_backward_that_did_not_cross_the_cut() -> None:
    ours = {k: v * 0 if STAGES[layer_of(k, LAYERS)] == 0 else v for k, v in tensors().items()}
    for gradients in (ours, {k: v for k, v in ours.items() if v.any()}):
        said = only_cause(gradients)
        assert said == "backward: stages [0] have no gradient, backward did not cross the cut"


def test_a_stage_that_has_nothing_to_learn_is_not_named() -> None:
    """As one whose true gradient is zero."""
    zero = {k: v * (STAGES[layer_of(k, LAYERS)] == 1) for k, v in tensors().items()}
    compared = differences(zero, zero, LAYERS)
    assert likely_causes(compared, Losses(2.0, 3.0), TOLERANCE, 4, 2, STAGES) == [
        "loss: 2 where the twin has 3 of the same outputs"
    ]


@pytest.mark.parametrize(
    ("factor", "over"), [(4, "micro-batches"), (2, "replicas"), (8, "micro-batches and replicas")]
)
def test_sums_that_should_be_means(factor: int, over: str) -> None:
    said = only_cause(scaled(factor))
    assert said == f"summed: gradients are {factor} times the twin's, summed over {over}"
    said = only_cause(scaled(1 / factor))
    assert said == f"scale: gradients are the twin's divided by {factor} {over} once more"


@given(
    st.floats(0.01, 100).filter(
        lambda x: all(abs(x / n - 1) > 0.01 for n in (1, 2, 4, 8, 1 / 2, 1 / 4, 1 / 8))
    )
)
def test_any_other_common_factor_is_told(factor: float) -> None:
    said = only_cause(scaled(factor))
    assert said == f"scale: gradients are {factor:.6g} times the twin's in every layer"


def test_the_last_layer_that_differs_is_named() -> None:
    """Backward goes from the last to the first: what goes wrong in one reaches those before."""
    said = only_cause(scaled(4, "block1.grapher") | scaled(3, "block0"))
    assert said.startswith("gradients: block0.ffn differs by 2.00e+00 though its output and ")
    said = only_cause(scaled(3, "block0") | {k: v * 4 for k, v in tensors().items() if "1.gr" in k})
    assert said.startswith("gradients: block1.grapher differs by 3.00e+00 though its output and ")


def test_a_mean_of_masked_means() -> None:
    """Micro-batches of 2 and 4 labelled rows, 3.0 and 1.0 summed: 4/6, and not (1.5 + 0.25)/2."""
    wrong = tensors(5)
    parts = ((3.0, 2.0), (1.0, 4.0))
    assert "masked means" in only_cause(wrong, losses=Losses(0.875, 4 / 6, parts))
    none_labelled = ((4.0, 6.0), (0.0, 0.0))
    half = only_cause(wrong, losses=Losses(2 / 6, 4 / 6, none_labelled))
    assert "masked means: the loss is the mean" in half
    nothing = only_cause(wrong, losses=Losses(math.nan, 4 / 6, none_labelled))
    assert nothing == "masked means: a micro-batch without a labelled row has no mean"


def test_another_loss_with_the_same_gradient() -> None:
    """As a constant added to the loss would give."""
    (said,) = causes_of(losses=Losses(2.5, 2.0))
    assert said == "loss: 2.5 where the twin has 2 of the same outputs"


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_is_named(number: float) -> None:
    broken = tensors() | {"readout.fc1.bias": np.full(4, number)}
    assert only_cause(broken).startswith("gradients: readout differs by ")


@given(st.integers(0, 10), st.floats(1e-4, 0.5), st.sampled_from(LAYERS))
def test_the_layer_alone_that_differs_is_found(seed: int, by: float, layer: str) -> None:
    noise = tensors(seed + 1)
    ours = {k: v + by * noise[k] * k.startswith(layer) for k, v in tensors().items()}
    assert only_cause(ours).startswith(f"gradients: {layer} differs by ")

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
    Array,
    StepsTaken,
    Verdict,
    above_rounding,
    compare,
    differences,
    layer_of,
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


TWIN = StepsTaken(2.0, tensors(), tensors(1), ((3.0, 2.0), (1.0, 4.0)))


def verdict_of(ours: StepsTaken, twin: StepsTaken = TWIN, **changes: Any) -> Verdict:
    given_values: dict[str, Any] = {
        "dtype": "float32",
        "microbatches": 4,
        "replicas": 2,
        "stages": STAGES,
        "invalid": {},
    }
    return compare(ours, twin, LAYERS, **(given_values | changes))


def scaled(by: float, only: str = "") -> dict[str, Array]:
    return {k: v * by if k.startswith(only) else v for k, v in tensors().items()}


def only_cause(ours: StepsTaken, **changes: Any) -> str:
    verdict = verdict_of(ours, **changes)
    assert not verdict.passed
    (cause,) = verdict.causes
    return cause


def test_the_same_passes() -> None:
    verdict = verdict_of(TWIN)
    assert verdict.passed
    assert verdict.worst == 0
    assert [d.layer for d in verdict.gradients] == LAYERS


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"), [("float32", 0.9e-5, 1.1e-5), ("float64", 0.9e-10, 1.1e-10)]
)
def test_the_tolerance_is_that_of_the_numbers(dtype: str, inside: float, outside: float) -> None:
    def off(by: float) -> Verdict:
        return verdict_of(replace(TWIN, gradients=scaled(1 + by, "readout")), dtype=dtype)

    assert off(inside).passed
    assert not off(outside).passed
    assert off(outside).worst == pytest.approx(outside, rel=1e-3)


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
        said = only_cause(replace(TWIN, gradients=gradients))
        assert said == "backward: stages [0] have no gradient, backward did not cross the cut"


@pytest.mark.parametrize(
    ("factor", "over"), [(4, "micro-batches"), (2, "replicas"), (8, "micro-batches and replicas")]
)
def test_sums_that_should_be_means(factor: int, over: str) -> None:
    said = only_cause(replace(TWIN, gradients=scaled(factor)))
    assert said == f"summed: gradients are {factor} times the twin's, summed over {over}"


@given(st.floats(0.01, 100).filter(lambda x: all(abs(x / n - 1) > 0.01 for n in (1, 2, 4, 8))))
def test_any_other_common_factor_is_told(factor: float) -> None:
    said = only_cause(replace(TWIN, gradients=scaled(factor)))
    assert said == f"scale: gradients are {factor:.6g} times the twin's in every layer"


def test_a_factor_in_one_layer_alone_names_the_layer() -> None:
    said = only_cause(replace(TWIN, gradients=scaled(4, "block1.grapher")))
    assert said == "gradients: block1.grapher differs by 3.00e+00 though the loss agrees"


def test_a_mean_of_masked_means() -> None:
    """Micro-batches of 2 and 4 labelled rows, 3.0 and 1.0 summed: 4/6, and not (1.5 + 0.25)/2."""
    twin = replace(TWIN, loss=4 / 6)
    wrong = {"gradients": tensors(5)}
    assert "masked means" in verdict_of(replace(twin, loss=0.875, **wrong), twin).causes[0]
    none_labelled = replace(twin, microbatch_losses=((4.0, 6.0), (0.0, 0.0)))
    half = verdict_of(replace(none_labelled, loss=2 / 6, **wrong), none_labelled)
    assert "masked means: the loss is the mean" in half.causes[0]
    nothing = verdict_of(replace(none_labelled, loss=math.nan, **wrong), none_labelled)
    assert nothing.causes == ["masked means: a micro-batch without a labelled row has no mean"]


def test_other_inputs_show_in_the_loss() -> None:
    said = only_cause(replace(TWIN, loss=2.5, gradients=tensors(5)))
    assert said.startswith("loss: 2.5 where the twin has 2; inputs, labels or parameters")


def test_another_loss_with_the_same_gradient() -> None:
    """As a constant added to the loss would give."""
    said = only_cause(replace(TWIN, loss=2.5))
    assert said.startswith("loss: 2.5 where the twin has 2")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_never_passes(number: float) -> None:
    broken: Mapping[str, Array] = TWIN.gradients | {"readout.fc1.bias": np.full(4, number)}  # type: ignore[operator]
    assert not verdict_of(replace(TWIN, gradients=broken)).passed
    assert not verdict_of(replace(TWIN, loss=number)).passed


def test_what_the_audit_found_is_a_cause_even_where_numbers_agree() -> None:
    found = {"labels": "3 mini-batches whose labels are not those of the first stage's inputs"}
    assert only_cause(TWIN, invalid=found) == f"labels: {found['labels']}"


@given(st.integers(0, 10), st.floats(0, 0.5), st.sampled_from(LAYERS))
def test_the_worst_layer_is_found(seed: int, by: float, layer: str) -> None:
    noise = tensors(seed)
    ours = {k: v + by * noise[k] * k.startswith(layer) for k, v in tensors().items()}
    verdict = verdict_of(replace(TWIN, gradients=ours))
    worst = max(verdict.gradients, key=lambda d: d.relative)
    assert verdict.worst == worst.relative
    assert by < 1e-6 or worst.layer == layer


def test_parameters_that_went_another_way_are_named() -> None:
    other = dict(TWIN.parameters) | {
        "readout.fc1.weight": TWIN.parameters["readout.fc1.weight"] * 2
    }
    said = only_cause(replace(TWIN, parameters=other))
    assert said.startswith("parameters: readout differs by ")


def test_what_has_no_gradient_may_go_anywhere() -> None:
    gradients = dict(TWIN.gradients) | {"readout.fc1.bias": np.full(4, 1e-9)}
    wandered = dict(TWIN.parameters) | {"readout.fc1.bias": np.ones(4)}
    twin = replace(TWIN, gradients=gradients)
    verdict = verdict_of(replace(twin, parameters=wandered), twin)
    assert verdict.passed
    assert verdict.left_out == 4


@given(st.floats(1e-2, 1e2))
def test_what_moves_is_told_by_its_layer_alone(scale: float) -> None:
    masks = above_rounding(scaled(scale, "readout"), LAYERS)
    expected = above_rounding(tensors(), LAYERS)
    assert all(np.array_equal(masks[name], expected[name]) for name in expected)

"""What counts as a difference, and what it is called: the limits of both, each at its edge."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from gnnhpc.check.compare_gradients import (
    TOLERANCE,
    Array,
    Difference,
    Losses,
    Verdict,
    differences,
    likely_causes,
)

LAYERS = ["a", "b"]
ONE = {"a.w": np.ones(3), "b.w": np.ones(2)}
EVEN = Losses(2.0, 2.0, ((1.0, 1.0), (3.0, 1.0)))


def cause_of(
    gradients: Mapping[str, Array],
    losses: Losses = EVEN,
    *,
    twin: Mapping[str, Array] = ONE,
    microbatches: int = 1,
    stages: Mapping[str, int] | None = None,
) -> str:
    compared = differences(gradients, twin, LAYERS)
    stages = {"a": 0, "b": 0} if stages is None else stages
    (cause,) = likely_causes(compared, losses, 1e-5, microbatches, 1, stages)
    return cause


def test_tolerances_are_those_that_the_readme_names() -> None:
    assert TOLERANCE == {"float32": 1e-5, "float64": 1e-10}


def test_of_no_layers_none_differs() -> None:
    found = Verdict(1e-5, 2.0, 2.0, [], [])
    assert (found.worst, found.worst_parameters, found.passed) == (0.0, 0.0, True)
    off = Difference("a", math.nan, 1.0, 1.0, 1.0, 0.0)
    assert Verdict(1e-5, 2.0, 2.0, [off], []).worst == math.inf
    assert Verdict(1e-5, 2.0, 2.0, [], []).rounding == 0.0
    assert Verdict(1e-5, 2.0, 2.0, [], []).kinks == 0


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
def test_sizes_do_not_matter_to_what_is_relative(size: float) -> None:
    twin = {"a.w": size * np.array([3.0, 4.0])}
    (found,) = differences({"a.w": size * np.array([6.0, 8.0])}, twin, LAYERS)
    assert found.norm == pytest.approx(10 * size)
    assert found.twin_norm == pytest.approx(5 * size)
    assert (found.relative, found.scale) == (pytest.approx(1.0), pytest.approx(2.0))
    assert found.residual == pytest.approx(0.0, abs=1e-12)
    (found,) = differences({"a.w": size * np.array([3.0, 5.0])}, twin, LAYERS)
    assert found.relative == pytest.approx(0.2)
    assert found.scale == pytest.approx(29 / 25)
    left = np.array([3.0, 5.0]) - 29 / 25 * np.array([3.0, 4.0])
    assert found.residual == pytest.approx(np.linalg.norm(left) / math.sqrt(34))


def test_a_gradient_where_the_twin_has_none_is_no_small_matter() -> None:
    (found,) = differences({"a.w": np.array([1e-9])}, {"a.w": np.zeros(1)}, LAYERS)
    assert found.relative > 1e200
    assert found.scale == 0.0
    (found,) = differences({"a.w": np.zeros(1)}, {"a.w": np.zeros(1)}, LAYERS)
    assert (found.relative, found.residual) == (0.0, 0.0)


def test_the_last_layer_that_is_wrong_is_named() -> None:
    bent = {"a.w": np.array([1.0, 2.0, 3.0]), "b.w": np.array([1.0, 1.5])}
    said = " though its output and the layers after it agree"
    assert cause_of(bent) == f"gradients: b differs by {0.5 / math.sqrt(2):.2e}{said}"
    assert cause_of(bent | {"b.w": np.ones(2)}).startswith("gradients: a differs by ")
    assert cause_of(bent | {"b.w": np.full(2, math.nan)}).startswith("gradients: b differs by nan")


def test_within_the_tolerance_the_loss_alone_is_wrong() -> None:
    said = "loss: 2.5 where the twin has 2 of the same outputs"
    losses = Losses(2.5, 2.0, EVEN.microbatches)
    # Just within 1e-5, all alike: no factor is looked for.
    assert cause_of({name: (1 + 9e-6) * value for name, value in ONE.items()}, losses) == said
    assert cause_of({"a.w": np.array([1, 1, 1 + 2e-4]), "b.w": np.ones(2)}).startswith("gradients")


def test_a_layer_alone_without_gradient_is_not_its_stage() -> None:
    """Nor is a tensor that belongs to no layer, nor a layer where the twin has none either."""
    one_layer = {"a.w": np.zeros(3), "b.w": np.full(2, 0.1)}
    assert cause_of(one_layer).startswith("gradients: b differs by ")
    nobodys = ONE | {"c": np.ones(1)}
    said = cause_of(ONE | {"c": np.zeros(1)}, twin=nobodys)
    assert said.startswith("gradients: c differs by ")
    dead = {"a.w": np.zeros(3), "b.w": np.ones(2)}
    said = cause_of(dead | {"b.w": np.array([1, 2])}, twin=dead, stages={"a": 0, "b": 1})
    assert said.startswith("gradients: b differs by ")
    small = {"a.w": np.zeros(3), "b.w": np.full(2, 1e-3)}
    said = cause_of(small, twin={name: 1e-3 * value for name, value in ONE.items()})
    assert said.startswith("gradients: a differs by ")


def test_stages_without_gradient_are_all_told() -> None:
    nothing = {name: 0 * value for name, value in ONE.items()}
    said = cause_of(nothing, stages={"a": 0, "b": 1})
    assert said == "backward: stages [0, 1] have no gradient, backward did not cross the cut"
    small = {name: 1e-3 * value for name, value in ONE.items()}
    assert cause_of(nothing, twin=small).startswith("backward: stages [0] have no gradient")


def test_one_micro_batch_has_no_mean_of_means() -> None:
    said = cause_of(ONE, Losses(1.5, 2.0, ((3.0, 2.0),)))
    assert said.startswith("loss: 1.5 where the twin has 2 ")


def test_a_mean_of_means_is_told_in_full_and_only_where_there_is_one() -> None:
    uneven = ((1.0, 1.0), (3.0, 2.0))
    assert cause_of(ONE, Losses(1.25, 4 / 3, uneven)) == (
        "masked means: the loss is the mean of the micro-batches' means, which weighs a labelled "
        "row by how few share its micro-batch"
    )
    assert cause_of(ONE, Losses(math.nan, 4 / 3, uneven)).startswith("loss: nan")
    unlabelled = ((4.0, 2.0), (0.0, 0.0))
    assert cause_of(ONE, Losses(7.0, 2.0, unlabelled)).startswith("loss: 7 ")
    # Where the mean of means is the mean, it explains nothing.
    even = ((2.0, 1.0), (2.0, 1.0))
    assert cause_of({"a.w": np.arange(3.0), "b.w": np.ones(2)}, Losses(2.0, 2.0, even)).startswith(
        "gradients: a"
    )


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_a_factor_is_common_to_layers_that_have_a_gradient(size: float) -> None:
    twin = {"a.w": np.full(3, size), "b.w": np.zeros(2)}
    tripled = {name: 3.0 * value for name, value in twin.items()}
    assert cause_of(tripled, twin=twin) == "scale: gradients are 3 times the twin's in every layer"
    nothing = {name: 0 * value for name, value in ONE.items()}
    assert cause_of(twin, twin=nothing).startswith("gradients: a differs by ")


def test_no_factor_is_common_where_a_layer_has_another_direction() -> None:
    bent = {"a.w": np.full(3, 2.0), "b.w": np.array([2.3, 1.7])}
    assert cause_of(bent).startswith("gradients: b differs by ")


def test_a_common_factor_is_common_to_a_thousandth() -> None:
    for other, expected in ((100.05, "scale: gradients are 100 times"), (100.2, "gradients: ")):
        near = {"a.w": np.full(3, 100.0), "b.w": np.full(2, other)}
        assert cause_of(near).startswith(expected)


def test_factors_are_told_to_a_thousandth() -> None:
    def times(factor: float, microbatches: int = 4) -> str:
        scaled = {name: factor * value for name, value in ONE.items()}
        return cause_of(scaled, microbatches=microbatches)

    assert times(4.002) == "summed: gradients are 4 times the twin's, summed over micro-batches"
    assert times(0.2501) == ("scale: gradients are the twin's divided by 4 micro-batches once more")
    assert times(4.02) == "scale: gradients are 4.02 times the twin's in every layer"
    # A factor of one thousandth is none, and one micro-batch is no factor.
    assert times(1.0005, 1).startswith("gradients: b differs by 5.00e-04")
    assert times(1.002, 1) == "scale: gradients are 1.002 times the twin's in every layer"


def test_replicas_are_a_factor_where_micro_batches_are_none() -> None:
    compared = differences({name: 2.0 * value for name, value in ONE.items()}, ONE, LAYERS)
    (cause,) = likely_causes(compared, EVEN, 1e-5, 1, 2, {"a": 0, "b": 0})
    assert cause == "summed: gradients are 2 times the twin's, summed over replicas"

"""A step of full size: its gradient is held against differences of its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.check.slope_check import (
    CHANGES,
    HIDDEN,
    MOST_S,
    Slope,
    changes,
    contradiction,
    slope_check,
    verdict,
)
from gnnhpc.records.schema import Check
from gnnhpc.spec.experiment import Experiment
from tests.engines.steps import parts_of
from tests.tools.cells import gat, graphs, linked, manifest_of, run, sampled, vig
from tests.tools.forked import Plant


def slope(ratio: float, change: float = 1e-3, hidden: float = 1e-9) -> Slope:
    return Slope(ratio * change, change, hidden)


def test_a_difference_may_be_off_by_what_rounding_hides() -> None:
    assert slope(1.0).is_right
    assert slope(0.995).is_right
    assert not slope(1.02).is_right
    assert slope(1.02, hidden=2e-5).is_right
    assert not slope(float("nan")).is_right


@pytest.mark.parametrize(
    ("ratios", "wrong"),
    [
        ([1.04, 1.0401], 1.04),
        ([0.5, 0.52, 0.9], 0.5),
        # Neither is right, and they do not agree: the loss is not straight there.
        ([1.03, 0.77], None),
        # The loss grows more curved; the smallest difference is right.
        ([1.001, 1.1, 1.11], None),
        ([1.04], None),
        ([float("nan"), float("nan")], None),
    ],
)
def test_a_gradient_is_wrong_where_the_loss_is_straight(
    ratios: list[float], wrong: float | None
) -> None:
    slopes = [slope(ratio, 1e-4 * 10**n) for n, ratio in enumerate(ratios)]
    found = contradiction(slopes[::-1])
    assert (None if found is None else pytest.approx(found.ratio)) == wrong
    expected = "invalid" if wrong else "ok" if any(s.is_right for s in slopes) else "unknown"
    assert verdict(slopes, 0.1).verdict == expected


def test_two_differences_of_one_size_do_not_tell_that_the_loss_is_straight() -> None:
    """Of a GCN whose biases are near zero: many of its ReLUs are at their kinks."""
    near = [slope(0.93333, 3.9e-3), slope(0.98251, 3.9e-4), slope(0.98428, 2.5e-4)]
    assert contradiction(near) is None
    assert contradiction([*near, slope(0.984, 2.5e-5)]) == slope(0.984, 2.5e-5)


def test_a_users_own_gradients_may_be_meant_to_be_no_slopes() -> None:
    twice = [slope(2.0, 1e-4), slope(2.0, 1e-3)]
    assert verdict(twice, 0.1).verdict == "invalid"
    assert verdict(twice, 0.1, own=True).verdict == "suspect"


def test_moves_that_are_lost_in_rounding_tell_nothing() -> None:
    assert verdict([Slope(0.0, 0.0, 1e-9)] * 2, 0.1).verdict == "unknown"


def test_changes_are_what_rounding_does_not_hide() -> None:
    assert changes(2.0, 0.0) == [2.0 * share for share in CHANGES]
    assert changes(2.0, 3e-6) == [4e-3, HIDDEN * 3e-6]
    assert changes(1e-4, 1e-6) == []
    assert verdict([], 0.1).verdict == "unknown"


def test_parameters_and_statistics_stay_as_they_were() -> None:
    parts = parts_of(vig(batchnorm="deferred"))
    before = {name: value.clone() for name, value in parts.stage.state_dict().items()}
    found = slope_check(vig(batchnorm="deferred"), parts, parts.engine.plan.mesh, [])  # type: ignore[attr-defined]
    assert found.verdict == "ok", found.detail
    assert found.values["ratio"] == pytest.approx(1.0, abs=1e-2)
    after = parts.stage.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_step_that_takes_too_long_is_not_taken_again() -> None:
    parts = parts_of(gat())
    mesh = parts.engine.plan.mesh  # type: ignore[attr-defined]
    long = slope_check(gat(), parts, mesh, [MOST_S] * 10)
    assert (long.verdict, long.values) == ("unknown", {})
    assert slope_check(gat(), parts, mesh, [MOST_S] * 100).verdict == "ok"


def slope_of(folder: Path, experiment: Experiment, plant: Plant | None = None) -> Check:
    (cell,) = manifest_of(folder, experiment)
    ran = run(folder, cell, plant=plant)
    assert set(ran.statuses) == {0}, ran.err
    (check,) = [each for each in ran.result.audit if each.name == "slope"]
    return check


@pytest.mark.distributed
@pytest.mark.parametrize(
    "experiment",
    [
        vig(layout="dp2-pp2", schedule="1f1b"),
        vig(layout="pp2", engine="pipelining", dtype="float64"),
        gat(layout="pp2", engine="torchgpipe"),
        gat(layout="dp2", model={"name": "gcn", "layers": 2}, bucket_mib=0.5),
        gat(layout="pp2", schedule="zero-bubble", microbatches=2),
        sampled(layout="dp2", batch_size=12),
        linked(),
        graphs(),
    ],
    ids=lambda each: f"{each.model.name} {each.layout} {each.engine} {each.schedule}",
)
def test_gradients_of_a_full_step_are_right(experiment: Experiment, tmp_path: Path) -> None:
    check = slope_of(tmp_path, experiment)
    assert check.verdict == "ok", check.detail


@pytest.mark.distributed
def test_a_gradient_that_lacks_a_part_is_told(tmp_path: Path) -> None:
    check = slope_of(tmp_path, gat(layout="pp2"), half_a_gradient)
    assert check.verdict == "invalid"
    assert "changes along its gradient by" in check.detail


def half_a_gradient() -> None:
    """Of one stage's parameters a half of the gradient, in steps after the last alone."""
    from gnnhpc.check import slope_check as checked

    true = checked._Passes.take

    def take(passes: Any) -> Any:
        found = true(passes)
        if passes.mesh.stage == 1:
            for parameter in passes.parameters:
                parameter.grad.mul_(0.5)
        return found

    checked._Passes.take = take  # type: ignore[method-assign]

"""Which differences of a loss contradict its gradient, in numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gnnhpc.check.slope.differences import (
    APART,
    CHANGES,
    HIDDEN,
    MOST_CHANGE,
    MOST_LENGTH,
    RANDOM_APART,
    RANDOM_HIDDEN,
    RANDOM_LENGTH,
    Difference,
    contradiction,
    lengths_along,
    random_lengths,
)


def along(ratio: float, change: float = 1e-3, hidden: float = 1e-9) -> Difference:
    """Of a loss that grows by a half a length."""
    return Difference(change, ratio * change, change, change, hidden)


def test_a_difference_may_be_off_by_what_rounding_hides() -> None:
    assert along(1.0).is_right
    assert along(0.995).is_right
    assert not along(1.02).is_right
    assert along(1.02, hidden=2e-5).is_right
    assert not along(math.nan).is_right


def test_an_error_in_a_random_direction_is_of_its_usual_change() -> None:
    """By chance little is expected in this one."""
    found = Difference(1e-3, 0.06, 0.05, 2.0, 1e-9)
    assert found.error == pytest.approx(0.005)
    assert found.off == pytest.approx(10.0)
    assert found.is_right
    assert not Difference(1e-3, 0.06, 0.03, 2.0, 1e-9).is_right


def test_without_a_gradient_nothing_may_change() -> None:
    assert Difference(1e-3, 1e-7, 0.0, 0.0, 1e-6).is_right
    lost = [Difference(length, length * 0.3, 0.0, 0.0, 1e-6) for length in (1e-3, 6e-3)]
    assert contradiction(lost) == lost[0]
    assert math.isnan(lost[0].error)
    # What was dead comes alive with the square of the length.
    waking = [Difference(length, length**2 * 10, 0.0, 0.0, 1e-6) for length in (1e-3, 6e-3)]
    assert contradiction(waking) is None


@pytest.mark.parametrize(
    ("ratios", "wrong"),
    [
        ([1.04, 1.0401], 1.04),
        ([0.5, 0.52, 0.9], 0.5),
        # Neither is right, and they do not agree: the loss is not straight there.
        ([1.03, 0.77], None),
        # The loss grows more curved; the smallest difference is right.
        ([1.001, 1.1, 1.11], None),
        # As near a kink: only the smallest knows the place itself.
        ([1.02, 1.19, 1.19], None),
        ([1.04], None),
        ([math.nan, math.nan], None),
    ],
)
def test_a_gradient_is_wrong_where_the_loss_is_straight(
    ratios: list[float], wrong: float | None
) -> None:
    found = contradiction([along(ratio, 1e-4 * 10**n) for n, ratio in enumerate(ratios)][::-1])
    assert (None if found is None else pytest.approx(1 + found.error)) == wrong


def test_what_is_off_on_one_side_alone_is_a_kink() -> None:
    """Where a unit's kink is nearer than the shortest length, the share off is always the same."""
    found = [Difference(length, 1.2 * length, length, length, 1e-9) for length in (1e-4, 1e-3)]
    for ahead, is_wrong in ((0.1, True), (0.08, True), (0.2, False), (0.0, False), (-0.1, False)):
        sided = [replace(each, ahead=ahead * each.length) for each in found]
        assert (contradiction(sided) is not None) == is_wrong


def test_two_differences_of_one_size_do_not_tell_that_the_loss_is_straight() -> None:
    """Of a GCN whose biases are near zero: many of its ReLUs are at their kinks."""
    near = [along(0.93333, 3.9e-3), along(0.98251, 3.9e-4), along(0.98428, 2.5e-4)]
    assert contradiction(near) is None
    assert contradiction([*near, along(0.984, 2.5e-5)]) == along(0.984, 2.5e-5)


def test_lengths_change_the_loss_by_what_rounding_does_not_hide() -> None:
    assert lengths_along(2.0, 0.0, 4.0) == [2.0 * share / 8.0 for share in CHANGES]
    assert lengths_along(2.0, 3e-6, 0.5) == [4e-3, HIDDEN * 3e-6]
    assert lengths_along(1e-4, 1e-6, 0.5) == []
    assert lengths_along(2.0, 1e-9, 0.0) == []
    # Where the loss hardly grows, a change that shows moves too far.
    assert lengths_along(2.0, 0.0, 1e-3) == [2.0 * CHANGES[-1] / 2e-3]
    assert max(lengths_along(2.0, 0.0, 1e-2)) <= MOST_LENGTH


def test_random_lengths_are_short_where_rounding_does_not_hide_them() -> None:
    assert RANDOM_APART >= APART
    first, less, more = RANDOM_LENGTH, RANDOM_LENGTH / RANDOM_APART, RANDOM_LENGTH * RANDOM_APART
    assert random_lengths(2.0, 0.0, 1.0) == [first, less, more]
    least = RANDOM_HIDDEN * 1e-6 / (2 * 0.02)
    assert random_lengths(2.0, 1e-6, 0.02) == [least, least * RANDOM_APART]
    assert random_lengths(2.0, 1e-6, RANDOM_HIDDEN * 1e-6 / 3 / MOST_LENGTH) == []
    assert random_lengths(2.0, 1e-9, MOST_CHANGE / RANDOM_LENGTH) == [first, less]
    assert random_lengths(2.0, 1e-9, 0.0) == [first, less, more]
    assert random_lengths(1e-5, 1e-6, 1.0) == []

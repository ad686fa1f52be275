"""Errors of outputs show beside numbers that are much larger than most."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.check.outputs_apart import bounded, relative_difference

DRAW = np.random.default_rng(0)
EXACT = DRAW.standard_normal((40, 5))


def test_of_numbers_of_one_size_it_is_the_share_of_their_norm() -> None:
    found = EXACT + 1e-3 * DRAW.standard_normal(EXACT.shape)
    share = np.linalg.norm(found - EXACT) / np.linalg.norm(EXACT)
    assert relative_difference(found, EXACT) == pytest.approx(share)


@pytest.mark.parametrize("fill", [-1e9, -1e30, -math.inf, math.inf])
def test_fills_hide_no_error(fill: float) -> None:
    found, exact = EXACT * 0.5, EXACT.copy()
    found[:, 2] = exact[:, 2] = fill
    # As single precision has it.
    assert 0.1 < relative_difference(found.astype(np.float32), exact) < 1.0
    assert relative_difference(exact.astype(np.float32), exact) < 1e-6


@pytest.mark.parametrize("fill", [-1e5, -1e9, -1e30])
def test_nor_do_they_where_most_numbers_are_fills(fill: float) -> None:
    found, exact = EXACT * 0.5, EXACT.copy()
    found[:, 2:] = exact[:, 2:] = fill
    assert 0.1 < relative_difference(found.astype(np.float32), exact) < 1.0
    assert relative_difference(exact.astype(np.float32), exact) < 1e-6


def test_rows_that_are_alike_are_no_fills() -> None:
    exact = np.concatenate([np.tile(EXACT[:1], (60, 1)), EXACT])
    found = exact + np.where(np.arange(100) < 60, 0.0, 1e-3)[:, None]
    share = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert relative_difference(found, exact) == pytest.approx(share)


@pytest.mark.parametrize("fill", [np.finfo(np.float32).min, np.finfo(np.float32).max])
def test_the_least_number_of_each_precision_is_the_same(fill: float) -> None:
    found, exact = EXACT.astype(np.float32), EXACT.copy()
    found[3], exact[3] = fill, math.copysign(np.finfo(np.float64).max, fill)
    assert relative_difference(found, exact) < 1e-6


def test_a_large_row_hides_no_error_of_others() -> None:
    found, exact = EXACT * 1.01, EXACT.copy()
    found[7] = exact[7] = exact[7] * 1e7
    found[7] *= 1 + 1e-7
    assert relative_difference(found, exact) > 5e-5
    assert relative_difference(exact.astype(np.float32), exact) < 1e-6


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1e9, 1e9])
def test_a_large_number_where_none_is_expected_is_far(wrong: float) -> None:
    found = EXACT.copy()
    found[3, 1] = wrong
    # Not `> 0.1`, as it may be no number.
    assert not relative_difference(found, EXACT) <= 0.1


def test_no_rows_and_zeros_are_alike() -> None:
    assert relative_difference(np.zeros((0, 5)), np.zeros((0, 5))) == 0
    assert relative_difference(np.zeros((3, 5)), np.zeros((3, 5))) == 0
    assert relative_difference(np.ones((3, 5)), np.zeros((3, 5))) > 1


@given(st.integers(0, 2**32 - 1), st.floats(-8, 8))
def test_a_unit_changes_nothing(seed: int, power: float) -> None:
    draw = np.random.default_rng(seed)
    exact = draw.standard_normal((6, 3))
    found = exact + 1e-4 * draw.standard_normal(exact.shape)
    one, other = (
        relative_difference(found, exact),
        relative_difference(found * 10**power, exact * 10**power),
    )
    assert one == pytest.approx(other, rel=1e-6)


def test_what_is_as_good_as_infinite_is_as_large_as_its_row() -> None:
    x = torch.tensor([[3.0, -math.inf, 4.0], [math.inf, -1e31, math.inf], [1.0, 2.0, 3.0]])
    expected = torch.tensor([[3.0, -2 * 12.5**0.5, 4.0], [2.0, -2.0, 2.0], [1.0, 2.0, 3.0]])
    assert torch.allclose(bounded(x), expected.double())
    assert bounded(x[2:]) is not None
    assert torch.equal(bounded(x[2:]), x[2:])
    unknown = bounded(torch.tensor([[math.nan, 1.0]]))
    assert unknown.isnan().tolist() == [[True, False]]

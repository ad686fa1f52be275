"""Buckets of gradients: neighbouring layers, last ones first, each with its least."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.engines.gradient_sync import gradient_buckets


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([4, 4, 4, 4], 8, [range(2, 4), range(2)]),
        ([1, 4, 4, 4], 8, [range(2, 4), range(2)]),
        ([4, 4, 4], 8, [range(1, 3), range(1)]),
        ([4, 4, 4], 1, [range(2, 3), range(1, 2), range(1)]),
        ([4, 4, 4], 100, [range(3)]),
        ([0, 4, 0, 4, 0], 1, [range(3, 5), range(1, 3)]),
        ([0, 0], 1, []),
        ([], 1, []),
    ],
)
def test_pictures(sizes: list[int], least: float, expected: list[range]) -> None:
    assert gradient_buckets(sizes, least) == expected


@given(st.lists(st.integers(0, 50)), st.floats(0.5, 120.0))
def test_every_gradient_is_in_one_bucket(sizes: list[int], least: float) -> None:
    found = gradient_buckets(sizes, least)
    held = [sum(sizes[layer] for layer in bucket) for bucket in found]
    assert sum(held) == sum(sizes)
    assert all(size > 0 for size in held)
    assert all(size >= least for size in held[:-1])
    # None has a layer more than it needs.
    assert all(size - sizes[bucket.start] < least for size, bucket in zip(held, found, strict=True))
    assert all(later.stop == earlier.start for earlier, later in itertools.pairwise(found))
    assert not found or found[0].stop == len(sizes)

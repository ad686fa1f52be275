"""Owners: every node has one, sizes are even, METIS cuts fewer edges than ranges do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.metis import Ids, contiguous_ranges, metis_clusters


@given(st.integers(1, 200), st.data())
def test_ranges_are_consecutive_and_even(nodes: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, nodes))
    owner = contiguous_ranges(nodes, count)
    sizes = np.bincount(owner, minlength=count)
    assert np.all(np.diff(owner) >= 0)
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == nodes


def in_edges(nodes: int, edges: set[tuple[int, int]]) -> tuple[Ids, Ids]:
    ordered = sorted((target, source) for source, target in edges)
    target, source = np.array(ordered, dtype=np.int64).T
    return np.searchsorted(target, np.arange(nodes + 1)), source


def rings(size: int, count: int) -> set[tuple[int, int]]:
    """Separate rings, their nodes dealt in turn, so that consecutive ranges cut every edge."""
    edges = set()
    for ring in range(count):
        for place in range(size):
            a, b = place * count + ring, (place + 1) % size * count + ring
            edges |= {(a, b), (b, a)}
    return edges


def test_metis_finds_separate_rings() -> None:
    edges = rings(10, 4)
    owner = metis_clusters(*in_edges(40, edges), count=4)
    assert all(owner[a] == owner[b] for a, b in edges)
    assert len(set(owner.tolist())) == 4


def test_metis_reads_one_way_edges_both_ways() -> None:
    both = rings(10, 4)
    one_way = {(a, b) for a, b in both if a < b}
    expected = metis_clusters(*in_edges(40, both), count=4)
    assert np.array_equal(metis_clusters(*in_edges(40, one_way), count=4), expected)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_metis_gives_the_same_parts_again(count: int) -> None:
    graph = in_edges(40, rings(10, 4))
    assert np.array_equal(metis_clusters(*graph, count), metis_clusters(*graph, count))

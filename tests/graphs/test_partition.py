"""Owners: every node has one, sizes are even, METIS cuts fewer edges than ranges do."""

from __future__ import annotations

import numpy as np
import pytest

from gnnhpc.graphs.csr import Ids
from gnnhpc.graphs.halo_chunks import metis_clusters


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


@pytest.mark.parametrize("count", [1, 3, 7])
def test_metis_gives_the_same_parts_again(count: int) -> None:
    graph = in_edges(40, rings(10, 4))
    assert np.array_equal(metis_clusters(*graph, count), metis_clusters(*graph, count))

"""Assigns nodes to chunks: consecutive ranges, or METIS clusters that cut few edges."""

from __future__ import annotations

import numpy as np

from gnnhpc.graphs.csr import Ids

# METIS is randomised; a fixed seed gives every rank and every run the same parts.
_METIS_SEED = 0


def contiguous_ranges(nodes: int, count: int) -> Ids:
    """Owner of each node when `count` chunks take consecutive ranges, sizes within one node."""
    return np.arange(nodes, dtype=np.int64) * count // nodes


def metis_clusters(indptr: Ids, source: Ids, count: int) -> Ids:
    """Owner of each node when METIS (Karypis & Kumar 1998) cuts the graph into `count` parts.

    The graph comes as its in-edges: node i is reached from `source[indptr[i]:indptr[i + 1]]`,
    sorted. Directions do not matter to METIS: an edge without its reverse is given one.
    A part may stay empty where there are hardly more nodes than parts.
    """
    nodes = len(indptr) - 1
    if count == 1:
        return np.zeros(nodes, dtype=np.int64)
    import pymetis

    indptr, source = _undirected(indptr, source)
    # METIS is usually built with 32-bit integers; other widths cost a copy of every edge.
    _, parts = pymetis.part_graph(
        count,
        pymetis.CSRAdjacency(indptr.astype(np.int32), source.astype(np.int32)),
        options=pymetis.Options(seed=_METIS_SEED),
    )
    return np.asarray(parts, dtype=np.int64)


def _undirected(indptr: Ids, source: Ids) -> tuple[Ids, Ids]:
    nodes = len(indptr) - 1
    target = np.repeat(np.arange(nodes), np.diff(indptr))
    forward, backward = target * nodes + source, np.sort(source * nodes + target)
    if np.array_equal(forward, backward):
        return indptr, source
    both = np.union1d(forward, backward)
    counts = np.bincount(both // nodes, minlength=nodes)
    return np.concatenate(([0], np.cumsum(counts))), both % nodes

"""Unions of small graphs: the same nodes and edges as graphs put together one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnhpc.graphs.graph_set import DisjointUnions, GraphSet


def graph_set(seed: int = 0, graphs: int = 9, most: int = 6) -> GraphSet:
    """Directed graphs, some of one node, some without edges."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most + 1, graphs)
    counts[0] = 1
    first = np.concatenate(([0], np.cumsum(counts)))
    edges = {
        (int(first[g] + a), int(first[g] + b))
        for g in range(graphs)
        if g % 3
        for a, b in rng.integers(0, counts[g], (2 * counts[g], 2)).tolist()
        if a != b
    }
    ordered = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    nodes = int(first[-1])
    labels = rng.integers(0, 3, graphs)
    place = np.arange(graphs)
    masks = {"train": place < 5, "val": (place >= 5) & (place < 7), "test": place >= 7}
    return GraphSet(
        "small",
        torch.from_numpy(rng.normal(size=(nodes, 4)).astype(np.float32)),
        torch.tensor(ordered, dtype=torch.int64).reshape(-1, 2).T.contiguous(),
        torch.from_numpy(first),
        torch.from_numpy(labels),
        {split: torch.from_numpy(mask) for split, mask in masks.items()},
        3,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chosen", [[0], [1, 2, 8], list(range(9)), [0, 3, 6], []])
def test_a_union_is_its_graphs_one_after_another(seed: int, chosen: list[int]) -> None:
    graphs = graph_set(seed)
    chunk = DisjointUnions(graphs, 2).of(torch.tensor(chosen, dtype=torch.int64), ("train",))
    first = graphs.first.tolist()
    nodes = [node for g in chosen for node in range(first[g], first[g + 1])]
    assert chunk.nodes.tolist() == nodes
    assert chunk.rows == (len(nodes),) * 3 + (len(chosen),)
    (block, other), row = chunk.blocks, {node: row for row, node in enumerate(nodes)}
    assert block is other
    wanted = {
        (row[a], row[b], number)
        for number, (a, b) in enumerate(graphs.edges.T.tolist())
        if b in row
    } | {(r, r, graphs.edges.shape[1] + node) for node, r in row.items()}
    found = list(zip(*(t.tolist() for t in (block.source, block.target, block.edge)), strict=True))
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert block.target.tolist() == sorted(block.target.tolist())
    assert torch.equal(block.indptr.diff(), torch.bincount(block.target, minlength=len(nodes)))
    assert torch.equal(chunk.degree, block.indptr.diff())
    # A node's own edge is the last of its row.
    assert block.source[block.indptr[1:] - 1].tolist() == list(range(len(nodes)))


def test_each_graph_pools_its_own_nodes() -> None:
    graphs = graph_set()
    chunk = DisjointUnions(graphs, 1).of(torch.tensor([0, 3, 7]), ("train",))
    pooling, first = chunk.pooling_block, graphs.first
    sizes = [int(first[g + 1] - first[g]) for g in (0, 3, 7)]
    assert pooling.indptr.diff().tolist() == sizes
    assert pooling.target.tolist() == [0] * sizes[0] + [1] * sizes[1] + [2] * sizes[2]

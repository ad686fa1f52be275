"""Edges by target: the order and the numbers of the graph's, and of a part of its nodes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.graph import InEdges


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, torch.Tensor]:
    """Nodes, and int64 [2, E] without self-loops or duplicates, by (target, source)."""
    nodes = draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    found = sorted({pair for pair in draw(st.lists(pairs)) if pair[0] != pair[1]})
    return nodes, torch.tensor([(s, t) for t, s in found], dtype=torch.int64).reshape(-1, 2).t()


@given(graphs())
def test_rows_are_the_sources_of_each_node(graph: tuple[int, torch.Tensor]) -> None:
    nodes, edges = graph
    found = InEdges.of(edges, nodes)
    assert found.source.dtype == torch.int32
    assert found.source.tolist() == edges[0].tolist()
    assert found.degrees.tolist() == [int((edges[1] == node).sum()) for node in range(nodes)]

"""The twin's sums over edges, some columns at a time, are those of all messages at once."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.check.twin import graph_sums
from gnnhpc.check.twin.scene import TwinGraph

NODES, EDGES = 7, 30


@pytest.mark.parametrize("width", [1, 4, 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_some_at_a_time(
    width: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_sums, "COLUMNS", 4)
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, NODES, (2, EDGES), generator=draw)
    graph = TwinGraph(NODES, source, target, torch.arange(EDGES))
    weights = torch.rand(EDGES, 1, generator=draw).double() if weighted else None
    x = torch.rand(NODES, width, generator=draw).double().requires_grad_()
    dense = torch.zeros(NODES, NODES).double()
    for edge in range(EDGES):
        dense[target[edge], source[edge]] += 1.0 if weights is None else weights[edge, 0]
    found = graph_sums.summed(x, graph, weights)
    torch.testing.assert_close(found, dense @ x)
    found.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * dense.T @ dense @ x.detach())

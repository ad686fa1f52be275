"""Pooling: ours, PyG's and DGL's are one function, of graphs of any size."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch

from gnnhpc.graphs.graph_set import DisjointUnions
from gnnhpc.models.graph_model import implementation_class
from gnnhpc.models.model import Context
from tests.graphs.test_disjoint_union import graph_set
from tests.tools.backends import needs_dgl


@pytest.mark.parametrize("implementation", ["fused", "pyg", "dgl"])
@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_outputs_and_gradients_are_those_of_a_loop(
    implementation: str, how: Literal["mean", "sum"], width: int, dtype: torch.dtype, close: float
) -> None:
    if implementation == "dgl":
        needs_dgl()
    chunk = DisjointUnions(graph_set(2), 1).of(torch.tensor([0, 2, 5, 8]), ("train",))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(chunk.nodes), width, dtype=dtype, generator=generator, requires_grad=True)
    upstream = torch.randn(4, width, dtype=dtype, generator=generator)
    layer = implementation_class(implementation, "Pooling")(how)
    found = layer(x, Context(graph=chunk))
    (gradient,) = torch.autograd.grad(found, x, upstream)
    bounds = chunk.pooling_block.indptr.tolist()
    parts = [x[a:b] for a, b in pairwise(bounds)]
    wanted = torch.stack([part.sum(0) if how == "sum" else part.mean(0) for part in parts])
    (expected,) = torch.autograd.grad(wanted, x, upstream)
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)
    torch.testing.assert_close(gradient, expected, rtol=close, atol=close)

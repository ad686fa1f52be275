"""The compiled sums and maxima are those of the form in torch: all widths, numbers of threads.

Numbers are whole and factors powers of two, so that every sum is exact in whatever order it is
taken, and what is wrong in one place shows there. In double precision the numbers also have digits
that single precision loses. PyG's layers are what the form in torch is compared with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels import cpp_aggregate as aggregate
from gnnhpc.kernels.neighbor_weights import NeighbourWeights
from gnnhpc.kernels.torch import torch_aggregate
from tests.tools.backends import needs_compiler, threads
from tests.tools.graphs import make_graph

pytestmark = needs_compiler
HUB = 200
"""Edges of one row, of about 800: more than the other threads' rows have."""
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_width = pytest.mark.parametrize("width", [1, 3, 127])
"""The last has a piece of each size that columns come in, and lanes of each number."""


@pytest.fixture(params=[1, 5], autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads(request.param):
        yield


@pytest.fixture(scope="module")
def block() -> Block:
    """Of a chunk with a halo: self-loops, a hub, rows without neighbours."""
    graph = make_graph(400, 300, seed=1)
    spokes = torch.arange(1, HUB + 1)
    hub = torch.zeros_like(spokes)
    ends = torch.cat((graph.edges, torch.stack((hub, spokes)), torch.stack((spokes, hub))), 1)
    keys = (ends[1] * 400 + ends[0]).unique()
    edges = torch.stack((keys % 400, keys // 400))
    chunks = build_chunks(dataclasses.replace(graph, edges=edges), 2, "halo", 2).chunks
    blocks = [chunk.blocks[0] for chunk in chunks]
    found = max(blocks, key=lambda block: int(block.indptr.diff().max()))
    assert found.rows_in > found.rows_out
    assert int(found.indptr.diff().max()) > HUB
    assert (found.indptr.diff() == 1).any()
    return found


def whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-8, 9, shape, generator=draw).to(dtype)
    return x * (1 + 2**-30) if dtype == torch.float64 else x


def kinds(block: Block, dtype: torch.dtype) -> list[NeighbourWeights]:
    """As GCN, a mean, a plain sum, GIN and GCN of weighted edges have them."""
    draw = torch.Generator().manual_seed(2)
    source, target, edge = (
        2.0 ** torch.randint(-2, 3, (count,), generator=draw).to(dtype)
        for count in (block.rows_in, block.rows_out, len(block.source))
    )
    return [
        NeighbourWeights(source, target, loops=True),
        NeighbourWeights(target=target),
        NeighbourWeights(),
        NeighbourWeights(own=1.0),
        NeighbourWeights(source, target, loops=True, edge=edge),
    ]


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@each_width
@each_dtype
def test_sums_and_their_gradients(block: Block, dtype: torch.dtype, width: int) -> None:
    # Columns of wider tensors, as where two results lie side by side.
    x = whole((block.rows_in, 2 * width), dtype, 4)[:, :width]
    add, bias = whole((block.rows_out, 2 * width), dtype, 5)[:, width:], whole((width,), dtype, 6)
    upstream = whole((block.rows_out, 2 * width), dtype, 7)[:, width:]
    few = upstream.clone()
    few[torch.arange(block.rows_out) % 7 != 1] = 0
    for weights in kinds(block, dtype):
        expected = torch_aggregate.sum_forward(x, block, weights)
        assert_same(aggregate.sum_forward(x, block, weights), expected)
        both = torch.full((block.rows_out, 2 * width), math.nan, dtype=dtype)
        aggregate.sum_forward(x, block, weights, add, bias, out=both[:, :width])
        assert_same(both[:, :width], expected + add + bias)
        assert both[:, width:].isnan().all()
        for given in (upstream, few):
            expected = torch_aggregate.sum_backward(given, block, weights)
            assert_same(aggregate.sum_backward(given, block, weights), expected)


def test_a_single_column_may_have_any_stride(block: Block) -> None:
    """As torch leaves it to a tensor that counts as contiguous anyway."""
    x = whole((block.rows_in,), torch.float32, 4)
    column = x.as_strided((block.rows_in, 1), (1, block.rows_in))
    assert column.contiguous().stride(1) != 1
    weights = NeighbourWeights()
    expected = aggregate.sum_forward(x[:, None].clone(), block, weights)
    assert_same(aggregate.sum_forward(column, block, weights), expected)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf], ids=str)
@each_width
@each_dtype
def test_maxima_and_their_gradients_and_what_is_not_finite(
    block: Block, dtype: torch.dtype, width: int, bad: float
) -> None:
    x, upstream = whole((block.rows_in, width), dtype, 8), whole((block.rows_out, width), dtype, 9)
    x[block.source[0], width // 2] = bad
    for weights in (NeighbourWeights(loops=True), NeighbourWeights()):
        expected = torch_aggregate.sum_forward(x, block, weights)
        assert_same(aggregate.sum_forward(x, block, weights), expected)
    out, winner = torch_aggregate.max_forward(x, block)
    found = aggregate.max_forward(x, block)
    assert_same(found[0], out)
    assert_same(found[1], winner)
    expected = torch_aggregate.max_backward(upstream, winner, block)
    assert_same(aggregate.max_backward(upstream, winner, block), expected)


def test_the_largest_may_be_of_any_row() -> None:
    """Beyond what two bytes hold."""
    x, sources = torch.zeros(70_001, 1), torch.arange(1, 70_001)
    x[69_000] = 1.0
    indptr, zeros = torch.tensor([0, 70_000]), torch.zeros_like(sources)
    block = Block(indptr, sources, zeros, sources, rows_in=70_001)
    out, winner = aggregate.max_forward(x, block)
    assert (out.item(), winner.item()) == (1.0, 69_000)
    grad = aggregate.max_backward(torch.ones(1, 1), winner, block)
    assert grad.nonzero().tolist() == [[69_000, 0]]

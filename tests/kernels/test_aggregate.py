"""Sums and maxima over neighbours in C++ and in Triton are those of the form in torch.

Numbers are whole and factors powers of two, so that every sum is exact in whatever order it is
taken, and what is wrong in one place shows there. In double precision the numbers also have digits
that single precision loses. PyG's layers are what the form in torch is compared with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels import cpp_aggregate
from gnnhpc.kernels.neighbor_weights import NeighbourWeights, by_source, by_target
from gnnhpc.kernels.torch import torch_aggregate
from tests.tools.backends import GPU, computed_by, needs_compiler, threads
from tests.tools.graphs import make_graph

HUB = 200
"""Edges of one row, of about 800: more than the other threads' rows have."""
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_width = pytest.mark.parametrize("width", [1, 3, 127])
"""The last has a piece of each size that columns come in, and lanes of each number."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Code that sums, with a block of edges for it."""

    code: ModuleType
    block: Block


@pytest.fixture(params=["c++, 1 thread", "c++, 5 threads", "triton"])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    if request.param == "triton":
        with computed_by("triton"):
            from gnnhpc.kernels.triton import triton_aggregate

            yield Kernel(triton_aggregate, small_block().to(GPU))
        return
    with computed_by("c++"), threads(int(request.param.split()[1])):
        yield Kernel(cpp_aggregate, block_with_hub())


def block_with_hub() -> Block:
    """Of a chunk with a halo: self-loops, a hub, rows without neighbours."""
    graph = make_graph(400, 300, seed=1)
    spokes = torch.arange(1, HUB + 1)
    hub = torch.zeros_like(spokes)
    ends = torch.cat((graph.edges, torch.stack((hub, spokes)), torch.stack((spokes, hub))), 1)
    keys = (ends[1] * 400 + ends[0]).unique()
    edges = torch.stack((keys % 400, keys // 400))
    chunks = build_chunks(dataclasses.replace(graph, edges=edges), 2, "halo", 2).chunks
    blocks = [chunk.blocks[0] for chunk in chunks]
    block = max(blocks, key=lambda block: int(block.indptr.diff().max()))
    assert block.rows_in > block.rows_out
    assert int(block.indptr.diff().max()) > HUB
    assert (block.indptr.diff() == 1).any()
    return block


def small_block(index: torch.dtype = torch.int32) -> Block:
    """Of 15 rows and 20 nodes: with sources that are no targets last."""
    (chunk,) = build_chunks(make_graph(20, 60, seed=5), 1, "halo", 1).chunks
    whole, rows = chunk.blocks[0], 15
    edges = int(whole.indptr[rows])
    parts = (
        whole.indptr[: rows + 1],
        *(x[:edges] for x in (whole.source, whole.target, whole.edge)),
    )
    return Block(*(part.to(index) for part in parts), rows_in=whole.rows_in)


def whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-8, 9, shape, generator=draw).to(device, dtype)
    return x * (1 + 2**-30) if dtype == torch.float64 else x


def kinds(block: Block, dtype: torch.dtype) -> list[NeighbourWeights]:
    """As GCN, a mean, a plain sum, GIN and GCN of weighted edges have them."""
    draw = torch.Generator().manual_seed(2)
    source, target, edge = (
        (2.0 ** torch.randint(-2, 3, (count,), generator=draw).to(dtype)).to(block.source.device)
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
def test_sums_and_their_gradients(kernel: Kernel, dtype: torch.dtype, width: int) -> None:
    block, device = kernel.block, kernel.block.source.device
    # Columns of wider tensors, as where two results lie side by side.
    x = whole((block.rows_in, 2 * width), dtype, 4, device)[:, :width]
    if width == 1:
        # Torch leaves the stride of a single column open.
        x = x.as_strided(x.shape, (2, block.rows_in))
    add = whole((block.rows_out, 2 * width), dtype, 5, device)[:, width:]
    bias = whole((width,), dtype, 6, device)
    upstream = whole((block.rows_out, 2 * width), dtype, 7, device)[:, width:]
    few = upstream.clone()
    few[torch.arange(block.rows_out) % 7 != 1] = 0
    for weights in kinds(block, dtype):
        expected = torch_aggregate.sum_rows(x, by_target(block, weights))
        assert_same(kernel.code.sum_rows(x, by_target(block, weights)), expected)
        both = x.new_full((block.rows_out, 2 * width), math.nan)
        kernel.code.sum_rows(x, by_target(block, weights), add, bias, out=both[:, :width])
        assert_same(both[:, :width], expected + add + bias)
        assert both[:, width:].isnan().all()
        for gradient in (upstream, few):
            expected = torch_aggregate.sum_rows(gradient, by_source(block, weights))
            assert_same(kernel.code.sum_rows(gradient, by_source(block, weights)), expected)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -math.inf], ids=str)
@each_dtype
def test_maxima_and_their_gradients_and_what_is_not_finite(
    kernel: Kernel, dtype: torch.dtype, bad: float
) -> None:
    """Ties among them, and a row with itself alone, which has no largest neighbour."""
    block, device = kernel.block, kernel.block.source.device
    for width in (1, 3, 127):
        x = whole((block.rows_in, width), dtype, 8, device)
        upstream = whole((block.rows_out, width), dtype, 9, device)
        x[int(block.source[0]), width // 2] = bad
        x[int(block.source[1]), width // 2] = bad
        for weights in (NeighbourWeights(loops=True), NeighbourWeights()):
            expected = torch_aggregate.sum_rows(x, by_target(block, weights))
            assert_same(kernel.code.sum_rows(x, by_target(block, weights)), expected)
        out, winner = torch_aggregate.max_forward(x, block)
        found = kernel.code.max_forward(x, block)
        assert_same(found[0], out)
        assert_same(found[1], winner)
        expected = torch_aggregate.max_backward(upstream, winner, block)
        assert_same(kernel.code.max_backward(upstream, winner, block), expected)


@needs_compiler
def test_the_largest_may_be_of_any_row() -> None:
    """Beyond what two bytes hold."""
    x, sources = torch.zeros(70_001, 1), torch.arange(1, 70_001)
    x[69_000] = 1.0
    indptr, zeros = torch.tensor([0, 70_000]), torch.zeros_like(sources)
    block = Block(indptr, sources, zeros, sources, rows_in=70_001)
    out, winner = cpp_aggregate.max_forward(x, block)
    assert (out.item(), winner.item()) == (1.0, 69_000)
    grad = cpp_aggregate.max_backward(torch.ones(1, 1), winner, block)
    assert grad.nonzero().tolist() == [[69_000, 0]]

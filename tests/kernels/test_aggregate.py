"""The kernel of sums and maxima, compared with sums edge by edge: all widths, numbers of threads.

Numbers are whole and factors powers of two, so that every sum is exact in whatever order it is
taken, and what is wrong in one place shows there. In double precision the numbers also have digits
that single precision loses.
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
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.kernels.torch import torch_aggregate
from tests.tools.backends import needs_compiler
from tests.tools.graphs import make_graph

pytestmark = needs_compiler
WIDTHS = (1, 3, 127)
"""The last has a piece of each size that columns come in, and lanes of each number."""
HUB = 200
"""Edges of one row, of about 800: more than the other threads' rows have."""
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
each_width = pytest.mark.parametrize("width", WIDTHS)


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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
    found = max((chunk.blocks[0] for chunk in chunks), key=lambda block: int(lengths(block).max()))
    assert found.rows_in > found.rows_out
    assert int(lengths(found).max()) > HUB
    assert (lengths(found) == 1).any()
    return found


def lengths(block: Block) -> Tensor:
    return block.indptr.diff()


def whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-8, 9, shape, generator=draw).to(dtype)
    return x * (1 + 2**-30) if dtype == torch.float64 else x


def powers(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return 2.0 ** torch.randint(-2, 3, (count,), generator=draw).to(dtype)


def kinds(block: Block, dtype: torch.dtype) -> list[NeighbourWeights]:
    """As GCN, a mean, a plain sum, GIN and GCN of weighted edges have them."""
    source, target = powers(block.rows_in, dtype, 2), powers(block.rows_out, dtype, 3)
    return [
        NeighbourWeights(source, target, loops=True),
        NeighbourWeights(target=target),
        NeighbourWeights(),
        NeighbourWeights(own=1.0),
        NeighbourWeights(source, target, loops=True, edge=powers(len(block.source), dtype, 14)),
    ]


def edge_factors(block: Block, weights: NeighbourWeights, dtype: torch.dtype) -> Tensor:
    factors = torch.ones(len(block.source), dtype=dtype)
    if weights.edge is not None:
        factors = factors * weights.edge
    if weights.source is not None:
        factors = factors * weights.source[block.source]
    if weights.target is not None:
        factors = factors * weights.target[block.target]
    return factors if weights.loops else factors * (block.source != block.target)


@each_width
@each_dtype
def test_sums_are_those_of_every_edge(
    block: Block, threads: int, dtype: torch.dtype, width: int
) -> None:
    # Columns of wider tensors, as where two results lie side by side.
    x = whole((block.rows_in, 2 * width), dtype, 4)[:, :width]
    add, bias = whole((block.rows_out, 2 * width), dtype, 5)[:, width:], whole((width,), dtype, 6)
    for weights in kinds(block, dtype):
        factors = edge_factors(block, weights, dtype)[:, None]
        expected = torch.zeros(block.rows_out, width, dtype=dtype)
        expected.index_add_(0, block.target, x[block.source] * factors)
        expected += weights.own * x[: block.rows_out]
        assert torch.equal(aggregate.sum_forward(x, block, weights), expected)
        both = torch.full((block.rows_out, 2 * width), math.nan, dtype=dtype)
        aggregate.sum_forward(x, block, weights, add, bias, out=both[:, :width])
        assert torch.equal(both[:, :width], expected + add + bias)
        assert both[:, width:].isnan().all()


@pytest.mark.parametrize("few", [False, True])
@each_width
@each_dtype
def test_gradients_of_sums_are_those_of_every_edge(
    block: Block, threads: int, dtype: torch.dtype, width: int, few: bool
) -> None:
    """Also where a `few` rows alone have a gradient, one after the hub's."""
    upstream = whole((block.rows_out, 2 * width), dtype, 7)[:, width:]
    if few:
        upstream[torch.arange(block.rows_out) % 7 != 1] = 0
    for weights in kinds(block, dtype):
        factors = edge_factors(block, weights, dtype)[:, None]
        expected = torch.zeros(block.rows_in, width, dtype=dtype)
        expected.index_add_(0, block.source, upstream[block.target] * factors)
        expected[: block.rows_out] += weights.own * upstream
        assert torch.equal(aggregate.sum_backward(upstream, block, weights), expected)


def test_a_single_column_may_have_any_stride(block: Block) -> None:
    """As torch leaves it to a tensor that counts as contiguous anyway."""
    x = whole((block.rows_in,), torch.float32, 4)
    column = x.as_strided((block.rows_in, 1), (1, block.rows_in))
    assert column.contiguous().stride(1) != 1
    weights = NeighbourWeights()
    expected = aggregate.sum_forward(x[:, None].clone(), block, weights)
    assert torch.equal(aggregate.sum_forward(column, block, weights), expected)
    upstream = x[: block.rows_out].as_strided((block.rows_out, 1), (1, block.rows_out))
    expected = aggregate.sum_backward(upstream.clone(), block, weights)
    assert torch.equal(aggregate.sum_backward(upstream, block, weights), expected)


@each_width
@each_dtype
def test_the_first_of_the_largest_wins(
    block: Block, threads: int, dtype: torch.dtype, width: int
) -> None:
    x = whole((block.rows_in, width), dtype, 8)
    best = torch.zeros(block.rows_out, width, dtype=dtype)
    winner = torch.full(best.shape, -1, dtype=torch.int32)
    for row in range(block.rows_out):
        sources = block.source[block.indptr[row] : block.indptr[row + 1]]
        sources = sources[sources != row]
        if len(sources):
            best[row] = x[sources].max(0).values
            first = (x[sources] == best[row]).int().argmax(0)
            winner[row] = sources[first].int()
    upstream = whole((block.rows_out, width), dtype, 9)
    grad = torch.zeros_like(x)
    for column in range(width):
        rows = winner[:, column] >= 0
        grad[:, column].index_add_(0, winner[rows, column].long(), upstream[rows, column])
    out, found = aggregate.max_forward(x, block)
    assert torch.equal(out, best)
    assert torch.equal(found, winner)
    assert torch.equal(aggregate.max_backward(upstream, found, block), grad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@each_dtype
def test_what_is_not_finite_reaches_all_that_it_reaches_in_torch(
    block: Block, dtype: torch.dtype, bad: float
) -> None:
    x = whole((block.rows_in, 127), dtype, 13)
    x[block.source[0], 5] = bad
    factors = edge_factors(block, NeighbourWeights(loops=True), dtype)[:, None]
    expected = torch.zeros(block.rows_out, 127, dtype=dtype)
    expected.index_add_(0, block.target, x[block.source] * factors)
    found = aggregate.sum_forward(x, block, NeighbourWeights(loops=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    pairs = zip(aggregate.max_forward(x, block), torch_aggregate.max_forward(x, block), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)


@each_dtype
def test_a_self_loop_that_is_left_out_brings_nothing_of_its_row(
    block: Block, dtype: torch.dtype
) -> None:
    x = whole((block.rows_in, 8), dtype, 13)
    x[0] = math.nan
    weights = NeighbourWeights(loops=False)
    for module in (aggregate, torch_aggregate):
        found = module.sum_forward(x, block, weights)
        reached = block.target[(block.source == 0) & (block.target != 0)].unique()
        assert found.isnan().any(1).nonzero().flatten().tolist() == reached.tolist()


def one_row(edges: int) -> Block:
    """A row whose neighbours are rows 1 to `edges`."""
    sources = torch.arange(1, edges + 1)
    return Block(torch.tensor([0, edges]), sources, torch.zeros_like(sources), sources, edges + 1)


def test_the_largest_may_be_of_any_row() -> None:
    """Beyond what two bytes hold."""
    x = torch.zeros(70_001, 1)
    x[69_000] = 1.0
    block = one_row(70_000)
    out, winner = aggregate.max_forward(x, block)
    assert (out.item(), winner.item()) == (1.0, 69_000)
    assert aggregate.max_backward(torch.ones(1, 1), winner, block).nonzero().tolist() == [
        [69_000, 0]
    ]


def test_a_neighbour_drawn_twice_gets_the_gradient_of_its_largest_number_once() -> None:
    """Rows 0 and 1 have neighbour 2 twice and three times, and others."""
    source = torch.tensor([2, 2, 3, 2, 2, 2, 0])
    block = Block(torch.tensor([0, 3, 7]), source, torch.tensor([0, 0, 0, 1, 1, 1, 1]), source, 4)
    x = torch.tensor([[1.0], [0.0], [5.0], [2.0]])
    upstream = torch.tensor([[8.0], [16.0]])
    for module in (aggregate, torch_aggregate):
        out, winner = module.max_forward(x, block)
        assert out.flatten().tolist() == [5.0, 5.0]
        grad = module.max_backward(upstream, winner, block)
        assert grad.flatten().tolist() == [0.0, 0.0, 24.0, 0.0]


def test_rows_without_any_edge_have_no_largest() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    block = Block(torch.zeros(4, dtype=torch.int64), none, none, none, 5)
    out, winner = torch_aggregate.max_forward(torch.randn(5, 2), block)
    assert out.tolist() == [[0.0, 0.0]] * 3
    assert winner.tolist() == [[-1, -1]] * 3
    assert torch_aggregate.max_backward(torch.ones(3, 2), winner, block).tolist() == [[0.0] * 2] * 5

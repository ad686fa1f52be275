"""Each of Triton's programs computes what the form in torch does, gradients with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels import aggregate_torch, gat_torch, sparse_torch
from gnnhpc.kernels.edges_torch import largest, of_sources, of_targets, summed
from gnnhpc.kernels.gpu import here
from gnnhpc.kernels.mask import Mask, layer_mask, number_entries
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from tests.tools.graphs import make_graph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOPE = 0.2
NEAR = {torch.float32: 1e-5, torch.float64: 1e-13}
MASK = layer_mask(3, 7, "layer0.attention", 0.6)
dtypes = pytest.mark.parametrize("dtype", NEAR, ids=str)


def chunk_of(index: torch.dtype, rows_out: int = 40) -> GraphChunk:
    """With rows of more edges than a program reads at once; sources that are no targets last."""
    (chunk,) = build_chunks(make_graph(40, 500, seed=5), 1, "halo", 1).chunks
    whole = chunk.blocks[0]
    edges = int(whole.indptr[rows_out])
    parts = (each[:edges].to(index) for each in (whole.source, whole.target, whole.edge))
    block = Block(whole.indptr[: rows_out + 1].to(index), *parts, rows_in=whole.rows_in)
    assert int(block.indptr.diff().max()) > 16
    return GraphChunk(**(vars(chunk) | {"blocks": (block,)})).to(DEVICE)


def block_of(index: torch.dtype = torch.int64, rows_out: int = 40) -> Block:
    return chunk_of(index, rows_out).blocks[0]


def numbers(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw, dtype=dtype).to(DEVICE) for shape in shapes]


def taken(function: Callable[..., Tensor], inputs: Sequence[Tensor], *more: object) -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    out = function(*leaves, *more)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """The first, then all others together: in gradients of scores, numbers of their size cancel."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    for part in (slice(0, 1), slice(1, None)):
        if found[part]:
            one, other = (
                torch.cat([x.flatten() for x in side[part]]) for side in (found, expected)
            )
            assert one.dtype == other.dtype
            assert (one - other).norm() <= NEAR[one.dtype] * other.norm()


@pytest.mark.parametrize(
    ("dtype", "mask", "index", "heads", "channels"),
    [
        (torch.float32, MASK, torch.int32, 8, 8),
        (torch.float64, MASK, torch.int64, 3, 5),
        (torch.float64, None, torch.int32, 1, 41),
    ],
    ids=str,
)
def test_attention(
    dtype: torch.dtype, mask: Mask | None, index: torch.dtype, heads: int, channels: int
) -> None:
    from gnnhpc.kernels.gpu.attention import attend

    block = block_of(index, 30)
    shapes = (block.rows_in, heads, channels), (1, heads, channels), (1, heads, channels)
    args = numbers(*shapes, dtype=dtype), block, mask, SLOPE
    assert_near(taken(attend, *args), taken(gat_torch.attend, *args))


def attend_v2_in_torch(
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    block: Block,
    mask: Mask | None,
    slope: float,
) -> Tensor:
    given, asking = of_sources(source, block), of_targets(target, block)
    scores = (functional.leaky_relu(given + asking, slope) * attention).sum(-1)
    raised = (scores - largest(scores, block)[block.target]).exp()
    share = raised / of_targets(summed(raised, block), block)
    if mask is not None:
        share = share * mask.weights(number_entries(block.edge, share.shape[1]), share.dtype)
    return summed(share[..., None] * given, block)


@pytest.mark.parametrize(
    ("dtype", "mask", "heads", "channels"),
    [(torch.float32, MASK, 8, 8), (torch.float64, None, 3, 5)],
    ids=str,
)
def test_attention_of_gatv2(
    dtype: torch.dtype, mask: Mask | None, heads: int, channels: int
) -> None:
    from gnnhpc.kernels.gpu.attention_v2 import attend

    block = block_of(rows_out=30)
    shapes = (block.rows_in, heads, channels), (30, heads, channels), (1, heads, channels)
    args = numbers(*shapes, dtype=dtype), block, mask, SLOPE
    assert_near(taken(attend, *args), taken(attend_v2_in_torch, *args))


@pytest.mark.parametrize(
    ("kind", "dtype", "index"),
    [
        ("normalised", torch.float32, torch.int64),
        ("mean", torch.float64, torch.int32),
        ("own", torch.float64, torch.int64),
    ],
    ids=str,
)
def test_sums_over_neighbours(kind: str, dtype: torch.dtype, index: torch.dtype) -> None:
    from gnnhpc.kernels.gpu import neighbour_sums

    chunk = chunk_of(index, 30)
    block, degree = chunk.blocks[0], chunk.degree.to(dtype)
    weights = {
        "normalised": NeighbourWeights.normalised(degree, 30),
        "mean": NeighbourWeights.mean(degree, 30),
        "own": NeighbourWeights(own=1.3),
    }[kind]
    wide, add, bias, upstream = numbers((40, 300), (30, 270), (270,), (30, 270), dtype=dtype)
    # Columns of wider tensors.
    x, out = wide[:, 5:275], wide.new_zeros(30, 300)[:, 2:272]
    for more in ((), (add, bias)):
        found, expected = (
            each.sum_forward(x, block, weights, *more) for each in (neighbour_sums, aggregate_torch)
        )
        assert_near([found], [expected])
    neighbour_sums.sum_forward(x, block, weights, out=out)
    assert_near([out], [aggregate_torch.sum_forward(x, block, weights)])
    found, expected = (
        each.sum_backward(upstream, block, weights) for each in (neighbour_sums, aggregate_torch)
    )
    assert_near([found], [expected])


@dtypes
def test_maxima_over_neighbours(dtype: torch.dtype) -> None:
    from gnnhpc.kernels.gpu import neighbour_maxima

    block = block_of(rows_out=30)
    x, upstream = numbers((40, 130), (30, 130), dtype=dtype)
    # Ties, and numbers that are none.
    x = x.mul(3).round()
    x[7, 3], x[9, 4] = torch.nan, -torch.inf
    found, expected = (each.max_forward(x, block) for each in (neighbour_maxima, aggregate_torch))
    assert torch.equal(found[1], expected[1])
    assert torch.allclose(found[0], expected[0], rtol=0, atol=0, equal_nan=True)
    gradients = (
        each.max_backward(upstream, found[1], block) for each in (neighbour_maxima, aggregate_torch)
    )
    assert_near(*([each] for each in gradients))


@dtypes
def test_products_of_stored_features(dtype: torch.dtype) -> None:
    from gnnhpc.kernels.gpu import stored_products

    (dense, weight, upstream) = numbers((500, 3), (3, 11), (500, 11), dtype=dtype)
    stored = (dense * (dense > -0.2)).to_sparse_csr()
    rows = SparseRows(
        *(stored.crow_indices(), stored.col_indices(), stored.values()),
        *(torch.arange(len(stored.values()), device=DEVICE), 3),
    )
    found, expected = (
        [each.sparse_forward(rows, weight), each.sparse_backward(rows, upstream)]
        for each in (stored_products, sparse_torch)
    )
    assert_near(found, expected)


@pytest.mark.parametrize("width", [1, 30])
@dtypes
def test_dropout(dtype: torch.dtype, width: int) -> None:
    from gnnhpc.kernels.gpu.masks import drop_rows

    (x,) = numbers((70, width), dtype=dtype)
    rows = torch.randint(2**40, (70,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    mask = layer_mask(5, 6, "layer0.dropout", 0.3)
    expected = x * mask.weights(number_entries(rows, width), dtype)
    assert torch.equal(drop_rows(x, rows, mask), expected)


def test_why_programs_do_not_run_is_told_in_a_line() -> None:
    found = here.why_not()
    assert (found == "") == torch.cuda.is_available()
    assert len(found.splitlines()) <= 1
    assert here.status() == {"triton": found or "runs"}


@settings(max_examples=300)
@given(st.integers(1, 10**6))
def test_sizes_are_powers_of_two_that_a_program_holds(count: int) -> None:
    padded = here.power_of_two(count)
    assert count <= padded < 2 * count
    assert padded & (padded - 1) == 0
    edges = here.at_once(padded)
    assert 1 <= edges <= 32
    assert here.warps(edges * padded) in (1, 2, 4, 8)


@given(st.integers(0, 2**32 - 1))
def test_numbers_of_a_mask_fit_into_32_bits(number: int) -> None:
    (signed, _, _) = here.mask_arguments(Mask(number, 0, 0, 1.0))
    assert -(2**31) <= signed < 2**31
    assert signed % 2**32 == number

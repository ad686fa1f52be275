"""Each of Triton's programs computes what the form in torch does, gradients with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.dropout_mask import Mask, layer_mask, number_entries
from gnnhpc.kernels.neighbor_weights import NeighbourWeights
from gnnhpc.kernels.torch import torch_aggregate, torch_attention, torch_products
from gnnhpc.kernels.triton import launch as here
from tests.tools.graphs import make_graph
from tests.tools.ranks import ROOT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NODES, ROWS = 20, 15
LARGE = 1e4
"""Of scores: exponentials of their differences are infinite."""
NEAR = {torch.float32: 1e-5, torch.float64: 1e-13}
MASK = layer_mask(3, 7, "layer0.attention", 0.6)
dtypes = pytest.mark.parametrize("dtype", NEAR, ids=str)


@pytest.fixture(autouse=True)
def few_edges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows of these small graphs are read in several pieces."""
    monkeypatch.setattr(here, "_EDGES", 4)


def chunk_of(index: torch.dtype, rows_out: int = NODES) -> GraphChunk:
    """With sources that are no targets last."""
    (chunk,) = build_chunks(make_graph(NODES, 120, seed=5), 1, "halo", 1).chunks
    whole = chunk.blocks[0]
    edges = int(whole.indptr[rows_out])
    parts = (each[:edges].to(index) for each in (whole.source, whole.target, whole.edge))
    block = Block(whole.indptr[: rows_out + 1].to(index), *parts, rows_in=whole.rows_in)
    assert min(int(x.indptr.diff().max()) for x in (block, block.transpose)) > 2 * 4
    return GraphChunk(**(vars(chunk) | {"blocks": (block,)})).to(DEVICE)


def block_of(index: torch.dtype = torch.int64, rows_out: int = NODES) -> Block:
    return chunk_of(index, rows_out).blocks[0]


def numbers(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw, dtype=dtype).to(DEVICE) for shape in shapes]


def taken(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    block: Block,
    mask: Mask | None,
    upstream: Tensor | None = None,
) -> list[Tensor]:
    """The output, and the gradients of all inputs, none of which lies as a program reads it."""
    leaves = [each if each is None else reversed_layout(each).requires_grad_() for each in inputs]
    out = function(*leaves, block, mask)
    out.backward(reversed_layout(2 * out if upstream is None else upstream))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]  # type: ignore[misc]


def reversed_layout(x: Tensor) -> Tensor:
    """A copy of [A, B, C] whose first dimension is the innermost one."""
    return x.detach().transpose(0, 2).contiguous().transpose(0, 2)


def assert_near(
    found: Sequence[Tensor], expected: Sequence[Tensor], largest_score: float = 1.0
) -> None:
    """The first, then all others together: in gradients of scores, numbers of their size cancel."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    for part in (slice(0, 1), slice(1, None)):
        if found[part]:
            one, other = (
                torch.cat([x.flatten() for x in side[part]]) for side in (found, expected)
            )
            assert one.dtype == other.dtype
            assert (one - other).norm() <= largest_score * NEAR[one.dtype] * other.norm()


def inputs_of(model: str, h: Tensor, first: Tensor, second: Tensor) -> list[Tensor | None]:
    """Features of sources, of targets (in GATv2), and the vectors of the scores."""
    if model == "gat":
        return [h, None, torch.cat((first, second))]
    return [h, h[:ROWS] / 2, first]


@pytest.mark.quick("gat-torch.float64-None-torch.int32-1-41")
@pytest.mark.parametrize(
    ("dtype", "mask", "index", "heads", "channels"),
    [
        (torch.float32, MASK, torch.int32, 8, 8),
        (torch.float64, MASK, torch.int64, 3, 5),
        (torch.float64, None, torch.int32, 1, 41),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_attention(
    model: str, dtype: torch.dtype, mask: Mask | None, index: torch.dtype, heads: int, channels: int
) -> None:
    from gnnhpc.kernels.triton import triton_attention

    block = block_of(index, ROWS)
    shapes = (block.rows_in, heads, channels), (1, heads, channels), (1, heads, channels)
    args = inputs_of(model, *numbers(*shapes, dtype=dtype)), block, mask
    assert_near(taken(triton_attention.attend, *args), taken(torch_attention.attend, *args))


def odd_scores(kind: str, dtype: torch.dtype) -> list[Tensor]:
    """Features whose scores are large, all far below zero, exactly zero, or no numbers."""
    h, first, second = numbers((NODES, 3, 5), (1, 3, 5), (1, 3, 5), dtype=dtype)
    if kind == "large":
        return [h * LARGE, first, second]
    if kind == "low":
        return [h.abs() * LARGE, -first.abs(), -second.abs()]
    if kind == "zero":
        h[::2] = 0
    if kind == "around zero":
        return [h * 1e-4, first, second]
    if kind == "no numbers":
        h[7], h[11, 0, 0] = torch.nan, torch.inf
    return [h, first, second]


@pytest.mark.quick("gat-large", "gatv2-low")
@pytest.mark.parametrize("kind", ["large", "low", "zero", "around zero", "no numbers"])
@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_attention_of_odd_scores(model: str, kind: str) -> None:
    from gnnhpc.kernels.triton import triton_attention

    block, inputs = block_of(rows_out=ROWS), inputs_of(model, *odd_scores(kind, torch.float64))
    upstream = torch.ones(ROWS, 3, 5, dtype=torch.float64, device=DEVICE)
    if kind == "no numbers":
        upstream[3] = torch.nan
    found, expected = (
        taken(each.attend, inputs, block, MASK, upstream)
        for each in (triton_attention, torch_attention)
    )
    assert [x.isnan().tolist() for x in found] == [x.isnan().tolist() for x in expected]
    assert (kind == "no numbers") == bool(found[0].isnan().any())
    found, expected = ([x.nan_to_num(0, 0, 0) for x in side] for side in (found, expected))
    # A softmax is off by as much, relative to itself, as its scores are.
    assert_near(found, expected, LARGE if kind in ("large", "low") else 1.0)


@pytest.mark.quick("own-torch.float64-torch.int64")
@pytest.mark.parametrize(
    ("kind", "dtype", "index"),
    [
        ("normalised", torch.float32, torch.int64),
        ("mean", torch.float64, torch.int32),
        ("own", torch.float64, torch.int64),
        ("weighted", torch.float64, torch.int32),
    ],
    ids=str,
)
def test_sums_over_neighbours(kind: str, dtype: torch.dtype, index: torch.dtype) -> None:
    from gnnhpc.kernels.triton import triton_aggregate as aggregate

    chunk = chunk_of(index, ROWS)
    block, degree = chunk.blocks[0], chunk.degree.to(dtype)
    weights = {
        "normalised": NeighbourWeights.normalised(degree, ROWS),
        "mean": NeighbourWeights.mean(degree, ROWS),
        "own": NeighbourWeights(own=1.3),
        "weighted": NeighbourWeights.normalised(
            degree, ROWS, *numbers((len(block.source),), dtype=dtype)
        ),
    }[kind]
    wide, more, bias = numbers((NODES, 300), (ROWS, 600), (270,), dtype=dtype)
    # Columns of wider tensors.
    x, out = wide[:, 5:275], wide.new_zeros(ROWS, 300)[:, 2:272]
    add, upstream = more[:, 7:277], more[:, 300:570]
    for values in (x, x.t().contiguous().t()):
        for beside in ((), (add, bias)):
            found, expected = (
                each.sum_forward(values, block, weights, *beside)
                for each in (aggregate, torch_aggregate)
            )
            assert_near([found], [expected])
    aggregate.sum_forward(x, block, weights, out=out)
    assert_near([out], [torch_aggregate.sum_forward(x, block, weights)])
    found, expected = (
        each.sum_backward(upstream, block, weights) for each in (aggregate, torch_aggregate)
    )
    assert_near([found], [expected])


def test_a_loop_that_is_left_out_may_hold_anything() -> None:
    from gnnhpc.kernels.triton import triton_aggregate as aggregate

    block = with_edges([[3], [0, 1, 2], [2]])
    x = torch.tensor([[1.0], [torch.nan], [torch.inf], [5.0]], device=DEVICE)
    weights = NeighbourWeights()
    found, expected = (each.sum_forward(x, block, weights) for each in (aggregate, torch_aggregate))
    assert found.isfinite().flatten().tolist() == [True, False, True]
    assert torch.equal(found, expected)


def with_edges(sources: list[list[int]]) -> Block:
    """A block whose targets have edges from these sources."""
    counts = torch.tensor([0, *map(len, sources)])
    source = torch.tensor([each for row in sources for each in row])
    target = torch.repeat_interleave(torch.arange(len(sources)), counts[1:])
    indptr = counts.cumsum(0)
    rows_in = int(source.max()) + 1
    return Block(indptr, source, target, torch.arange(len(source)), rows_in).to(DEVICE)


@dtypes
def test_maxima_over_neighbours(dtype: torch.dtype) -> None:
    from gnnhpc.kernels.triton import triton_aggregate as aggregate

    whole = block_of(rows_out=ROWS)
    # Ties, numbers that are none, two of them for one target, a row with itself
    # alone, and numbers below what a row without neighbours has.
    odd = with_edges([[1, 2, 3], [2, 3], [2], [4, 5, 3]])
    for block, rows in ((whole, ROWS), (odd, 4)):
        wide, upstream = numbers((block.rows_in, 260), (130, rows), dtype=dtype)
        x, upstream = wide.mul(3).round()[:, 130:] - 9, upstream.t()
        x[5, 3:6], x[4, 4], x[2, 7], x[3, 7:9] = torch.nan, torch.nan, -torch.inf, -torch.inf
        found, expected = (each.max_forward(x, block) for each in (aggregate, torch_aggregate))
        assert torch.equal(found[1], expected[1])
        assert torch.allclose(found[0], expected[0], rtol=0, atol=0, equal_nan=True)
        gradients = (
            each.max_backward(upstream, found[1], block) for each in (aggregate, torch_aggregate)
        )
        assert_near(*([each] for each in gradients))


def stored(dtype: torch.dtype) -> SparseRows:
    """Features [200, 3], more than half of them stored."""
    (dense,) = numbers((200, 3), dtype=dtype)
    rows = (dense * (dense > -0.2)).to_sparse_csr()
    entries = torch.arange(len(rows.values()), device=DEVICE)
    return SparseRows(rows.crow_indices(), rows.col_indices(), rows.values(), entries, 3)


@pytest.mark.quick("11-torch.float32")
@dtypes
@pytest.mark.parametrize("width", [11, 150])
def test_products_of_stored_features(width: int, dtype: torch.dtype) -> None:
    from gnnhpc.kernels.triton import triton_features as stored_products

    rows = stored(dtype)
    weight, upstream = (each.t() for each in numbers((width, 3), (width, 200), dtype=dtype))
    found, expected = (
        [each.sparse_forward(rows, weight), each.sparse_backward(rows, upstream)]
        for each in (stored_products, torch_products)
    )
    assert_near(found, expected)


@pytest.mark.parametrize("width", [1, 30])
@dtypes
def test_dropout(dtype: torch.dtype, width: int) -> None:
    from gnnhpc.kernels.triton.triton_features import drop_rows

    (x,) = numbers((width, 70), dtype=dtype)
    x = x.t()
    rows = torch.randint(2**40, (70,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    mask = layer_mask(5, 6, "layer0.dropout", 0.3)
    entries = number_entries(rows, width)
    x[~mask.keeps(entries)[:, 0], 0] = torch.inf
    found, expected = drop_rows(x, rows, mask), x * mask.weights(entries, dtype)
    assert torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)
    assert found[:, 0].isnan().any()


@pytest.mark.slow
def test_all_programs_are_compiled_for_a_gpu(tmp_path: Path) -> None:
    """Triton's interpreter takes what its compiler does not."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.compiled"],
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {tuple(line.split()) for line in done.stdout.splitlines()}
    sources = (ROOT / "gnnhpc/kernels/triton").glob("*programs.py")
    programs = [
        name
        for path in sources
        if path.stem not in ("edge_programs", "sampling_programs", "vig_programs")
        for name in re.findall(r"^def (\w+)\(", path.read_text(), re.M)
        if name not in ("keeps", "scores", "of_target")
    ]
    wanted = {(name, str(dtype)) for name in programs for dtype in NEAR}
    sampling = ("count_edges", "draw_edges", "number_nodes", "number_sources")
    wanted |= {(name, str(dtype)) for name in sampling for dtype in (torch.int32, torch.int64)}
    vig = (ROOT / "gnnhpc/kernels/triton/vig_programs.py").read_text()
    wanted |= {(name, "torch.float32") for name in re.findall(r"^def (vig_\w+)\(", vig, re.M)}
    assert found == wanted
    assert programs


def test_why_programs_do_not_run_is_one_line() -> None:
    found = here.why_not()
    assert (found == "") == torch.cuda.is_available()
    assert len(found.splitlines()) <= 1
    assert here.status() == {"triton": found or "runs"}

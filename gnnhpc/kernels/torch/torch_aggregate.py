"""Sums and maxima over sorted rows in plain torch: any device, bounded memory.

Over neighbours they are the functions that `gnnhpc.kernels.aggregate` has in C++ for a CPU; over
stored features they are products with a weight. Some rows are computed at a time, so that nothing
of the size of all edges times the width is ever held. Sums, and the gradient of maxima, run over
sorted segments, without atomic additions, and so are the same each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.graphs.node_features import SparseRows

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block
    from gnnhpc.kernels.neighbor_weights import RowSums

# Numbers of a piece's largest tensor, edges x width: to fit in a core's cache, or to fill a GPU
# without filling its memory.
PIECE_CPU = 2**20
PIECE_GPU = 2**27


def of_rows(values: Tensor, starts: Tensor, how: Literal["sum", "max"]) -> Tensor:
    """Each row's sum or largest of `values` [edges, ...], whose rows begin at `starts`."""
    initial = 0 if how == "sum" else None
    return torch.segment_reduce(values, how, offsets=starts, axis=0, unsafe=True, initial=initial)


def starts(indptr: Tensor, rows: slice) -> Tensor:
    """The place at which the entries of each of some rows begin among theirs, int64 [rows + 1]."""
    return (indptr[rows.start : rows.stop + 1] - indptr[rows.start]).long()


def most_edges(x: Tensor, width: int) -> int:
    """Edges of a piece, where each has `width` numbers on the device of `x`."""
    numbers = PIECE_CPU if x.device.type == "cpu" else PIECE_GPU
    return max(1, numbers // width)


def sum_rows(
    x: Tensor,
    sums: RowSums,
    add: Tensor | None = None,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Each row's weighted sum of x [rows at other ends, D], plus add [rows, D] and bias [D]."""
    weights, indptr = sums.weights, sums.edges.indptr
    out = x.new_empty(sums.rows, x.shape[1]) if out is None else out
    for rows, places in sums.edges.pieces(most_edges(x, x.shape[1])):
        other, edge = sums.others[places], places if sums.number is None else sums.number[places]
        found = x[other]
        if sums.of_others is not None:
            found = found * sums.of_others[other][:, None]
        if weights.edge is not None:
            found = found * weights.edge[edge][:, None]
        if not weights.loops:
            # Zero for a self-loop, whatever its row holds.
            found = found.masked_fill((other == sums.rows_of[edge])[:, None], 0.0)
        out[rows] = of_rows(found, starts(indptr, rows), "sum")
    if sums.of_rows is not None:
        out *= sums.of_rows[:, None]
    if weights.own:
        out[: sums.rows_with_own] += weights.own * x[: sums.rows_with_own]
    if add is not None:
        out += add
    if bias is not None:
        out += bias
    return out


def max_forward(x: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Each target's largest x [rows_in, D] of its neighbours, and the row it is of (int32)."""
    out = x.new_zeros(block.rows_out, x.shape[1])
    winner = torch.full(out.shape, -1, dtype=torch.int32, device=x.device)
    for rows, places in block.pieces(most_edges(x, x.shape[1])):
        source, target = block.source[places], block.target[places]
        if not len(source):
            continue
        neighbours = x[source].masked_fill((source == target)[:, None], -torch.inf)
        best = of_rows(neighbours, starts(block.indptr, rows), "max")
        is_best = (neighbours == best[target - rows.start]) | neighbours.isnan()
        is_best &= (source != target)[:, None]
        # The first of several: the smallest place of those that hold the largest number.
        number = torch.arange(len(source), device=x.device)[:, None]
        # Doubles: single precision knows no places beyond 2**24, and a GPU's piece has more.
        places_held = torch.where(is_best, -number, -len(source)).double()
        place = of_rows(places_held, starts(block.indptr, rows), "max").clamp(min=-len(source))
        found = place > -len(source)
        first = (-place).long().clamp(max=len(source) - 1)
        winner[rows] = torch.where(found, source[first].int(), -1)
        out[rows] = torch.where(found, best, 0.0)
    return out, winner


def max_backward(upstream: Tensor, winner: Tensor, block: Block) -> Tensor:
    """The gradient [rows_in, D] of `max_forward`'s input."""
    transpose = block.transpose
    grad = upstream.new_empty(block.rows_in, upstream.shape[1])
    for rows, places in transpose.pieces(most_edges(upstream, upstream.shape[1])):
        target = transpose.target[places]
        source = block.source[transpose.edge[places]]
        won = winner[target] == source[:, None]
        found = torch.where(won, upstream[target], 0.0)
        grad[rows] = of_rows(found, starts(transpose.indptr, rows), "sum")
    return grad


def sparse_forward(rows: SparseRows, weight: Tensor) -> Tensor:
    """rows [n, F] @ weight [F, D]."""
    return _sums_of_stored(rows.indptr, rows.columns, rows.values, weight)


def sparse_backward(rows: SparseRows, upstream: Tensor) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]."""
    by_column = rows.by_column
    values = rows.values[by_column.place]
    return _sums_of_stored(by_column.indptr, by_column.row, values, upstream.contiguous())


def _sums_of_stored(indptr: Tensor, index: Tensor, values: Tensor, of: Tensor) -> Tensor:
    """Each segment's sum of the rows of `of` that it names, times its values, in their order.

    The product that torch has of its CSR tensors is cuSPARSE's on a GPU, which adds in another
    order from one call to the next (its documentation of `cusparseSpMM`).
    """
    return functional.embedding_bag(
        index.long(),
        of,
        indptr.long(),
        mode="sum",
        per_sample_weights=values.to(of.dtype),
        include_last_offset=True,
    )

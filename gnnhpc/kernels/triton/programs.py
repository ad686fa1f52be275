"""Triton programs over rows: dropout, products of stored features, sums and maxima over neighbours.

A program computes some columns of one row, and adds its entries in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keeps(entries, first, second, threshold):
    """Whether entries stay: their numbers modulo 2**32, and a mask's three as signed numbers; its
    keys may be addresses of such."""
    if first.dtype.is_ptr():
        first = tl.load(first)
        second = tl.load(second)
    x = entries + first.to(tl.uint32, bitcast=True)
    x ^= x >> 16
    x *= 0x21F0AAAD
    x ^= x >> 15
    x += second.to(tl.uint32, bitcast=True)
    x *= 0x735A2D97
    x ^= x >> 15
    return x >= threshold.to(tl.uint32, bitcast=True)


@triton.jit(
    do_not_specialize=["count", "width", "first", "second", "threshold"],
    do_not_specialize_on_alignment=["x", "rows", "out", "first", "second"],
)
def drop_rows(
    x, rows, out, count, width, first, second, threshold, SCALE: tl.constexpr, AT_ONCE: tl.constexpr
):
    """`out` [n, width] is `x`, entries of its `rows` masked and scaled; `count` is n * width."""
    place = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = place < count
    row, column = place // width, place % width
    number = tl.load(rows + row, mask=there, other=0).to(tl.uint32)
    entries = number * width.to(tl.uint32) + column.to(tl.uint32)
    kept = keeps(entries, first, second, threshold)
    value = tl.load(x + place, mask=there, other=0.0)
    # What is no number stays none.
    tl.store(out + place, tl.where(kept, value * SCALE, value * 0.0), mask=there)


@triton.jit(
    do_not_specialize=["rows", "width"],
    do_not_specialize_on_alignment=["indptr", "index", "place", "values"],
)
def sum_stored(
    indptr,
    index,
    place,
    values,
    of,
    out,
    rows,
    width,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """out [PARTS, rows, width]: of each row, PARTS sums of neighbouring entries' values times the
    rows of `of` [..., width] that `index` names; entry p's value is values[p], or values[place[p]]
    where there are places.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    share = (end - begin + PARTS - 1) // PARTS
    begin += part * share
    end = tl.minimum(end, begin + share)
    result = tl.zeros([COLUMNS], out.dtype.element_ty)
    for at in range(begin, end, ENTRIES):
        entry = at + tl.arange(0, ENTRIES)
        there = entry < end
        named = tl.load(index + entry, mask=there, other=0).to(tl.int64)
        where = entry if place is None else tl.load(place + entry, mask=there, other=0)
        value = tl.load(values + where, mask=there, other=0.0).to(out.dtype.element_ty)
        inside = there[:, None] & real[None, :]
        numbers = tl.load(of + named[:, None] * width + column[None, :], mask=inside, other=0.0)
        result += tl.sum(value[:, None] * numbers, 0)
    tl.store(out + (part * rows + row) * width + column, result, mask=real)


@triton.jit(
    do_not_specialize=["x_row", "add_row", "out_row", "rows_with_own", "width"],
    do_not_specialize_on_alignment=["indptr", "other", "number"],
)
def sum_rows(
    x,
    x_row,
    indptr,
    other,
    number,
    of_edge,
    of_other,
    of_row,
    add,
    add_row,
    bias,
    out,
    out_row,
    rows_with_own,
    width,
    OWN: tl.constexpr,
    LOOPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Row i of `out` is the sum over i's edges of the rows of `x` at their other ends, times the
    factors of both ends and of the edge, which is of_edge[e], or of_edge[number[e]]; plus OWN times
    its own row of `x`, its row of `add`, and `bias`. Factors, `add` and `bias` may be None.

    Rows of `x`, `add` and `out` lie `x_row`, `add_row` and `out_row` numbers apart. Without LOOPS
    an edge from i to itself is left out, whatever its row holds.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    result = tl.zeros([COLUMNS], out.dtype.element_ty)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = place < end
        end_of = tl.load(other + place, mask=there, other=0).to(tl.int64)
        if not LOOPS:
            there = there & (end_of != row)
        inside = there[:, None] & real[None, :]
        value = tl.load(x + end_of[:, None] * x_row + column[None, :], mask=inside, other=0.0)
        if of_other is not None:
            value *= tl.load(of_other + end_of, mask=there, other=0.0)[:, None]
        if of_edge is not None:
            edge = place
            if number is not None:
                edge = tl.load(number + place, mask=there, other=0).to(tl.int64)
            value *= tl.load(of_edge + edge, mask=there, other=0.0)[:, None]
        result += tl.sum(value, 0)
    if of_row is not None:
        result *= tl.load(of_row + row)
    if OWN != 0.0:
        # Past these nothing is a node of its own.
        columns = tl.where(row < rows_with_own, width, 0)
        result += tl.load(x + row * x_row + column, mask=column < columns, other=0.0) * OWN
    if add is not None:
        result += tl.load(add + row * add_row + column, mask=real, other=0.0)
    if bias is not None:
        result += tl.load(bias + column, mask=real, other=0.0)
    tl.store(out + row * out_row + column, result, mask=real)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["indptr", "source"])
def max_rows(x, indptr, source, out, winner, width, COLUMNS: tl.constexpr):
    """A target's largest x [rows_in, width] of its sources, itself aside, and whose it is: the
    first of several. 0 and -1 where there are none; what is no number is larger than any.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    best = tl.full([COLUMNS], float("-inf"), out.dtype.element_ty)
    whose = tl.full([COLUMNS], -1, tl.int32)
    for place in range(begin, end):
        origin = tl.load(source + place).to(tl.int64)
        value = tl.load(x + origin * width + column, mask=real & (origin != row), other=0.0)
        wins = (whose < 0) | (value > best) | ((value != value) & (best == best))
        wins = wins & (origin != row)
        best = tl.where(wins, value, best)
        whose = tl.where(wins, origin.to(tl.int32), whose)
    tl.store(out + row * width + column, tl.where(whose < 0, 0.0, best), mask=real)
    tl.store(winner + row * width + column, whose, mask=real)


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["indptr", "target"])
def max_rows_backward(upstream, winner, indptr, target, grad, width, COLUMNS: tl.constexpr):
    """For one source, whose edges are those of the block's transpose: the sum of the gradients of
    those targets that it won [rows_in, width]; of an edge that is there twice once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    result = tl.zeros([COLUMNS], grad.dtype.element_ty)
    before = begin - begin - 1
    for place in range(begin, end):
        goal = tl.load(target + place).to(tl.int64)
        at = goal * width + column
        won = tl.load(winner + at, mask=real, other=-1) == row
        gradient = tl.load(upstream + at, mask=won & real & (goal != before), other=0.0)
        result += gradient
        before = goal
    tl.store(grad + row * width + column, result, mask=real)

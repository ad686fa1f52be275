"""Weighted sums over neighbours in Triton: a program computes some columns of one row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["x_row", "add_row", "out_row", "rows_with_own", "width"],
    do_not_specialize_on_alignment=["indptr", "other"],
)
def sum_rows(
    x,
    x_row,
    indptr,
    other,
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
    HAS_OTHER: tl.constexpr,
    HAS_ROW: tl.constexpr,
    HAS_ADD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Row i of `out` is the sum over i's edges of the rows of `x` at their other ends, times both
    ends' factors; plus OWN times its own row of `x`, its row of `add`, and `bias`.

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
        if HAS_OTHER:
            value *= tl.load(of_other + end_of, mask=there, other=0.0)[:, None]
        result += tl.sum(value, 0)
    if HAS_ROW:
        result *= tl.load(of_row + row)
    if OWN != 0.0:
        # Past these nothing is a node of its own.
        columns = tl.where(row < rows_with_own, width, 0)
        result += tl.load(x + row * x_row + column, mask=column < columns, other=0.0) * OWN
    if HAS_ADD:
        result += tl.load(add + row * add_row + column, mask=real, other=0.0)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=real, other=0.0)
    tl.store(out + row * out_row + column, result, mask=real)

"""Products of stored features in Triton: a program computes some columns of a part of a row."""

from __future__ import annotations

import triton
import triton.language as tl


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
    HAS_PLACE: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """out [PARTS, rows, width]: of each row, PARTS sums of neighbouring entries' values times the
    rows of `of` [..., width] that `index` names; entry p's value is values[p], or values[place[p]].
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
        where = tl.load(place + entry, mask=there, other=0) if HAS_PLACE else entry
        value = tl.load(values + where, mask=there, other=0.0).to(out.dtype.element_ty)
        inside = there[:, None] & real[None, :]
        given = tl.load(of + named[:, None] * width + column[None, :], mask=inside, other=0.0)
        result += tl.sum(value[:, None] * given, 0)
    tl.store(out + (part * rows + row) * width + column, result, mask=real)

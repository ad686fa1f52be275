"""Maxima over neighbours in Triton: a program computes some columns of one row."""

from __future__ import annotations

import triton
import triton.language as tl


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
    """Of one source, whose edges are those of the block's transpose: the sum of the gradients of
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
        given = tl.load(upstream + at, mask=won & real & (goal != before), other=0.0)
        result += given
        before = goal
    tl.store(grad + row * width + column, result, mask=real)

"""Dropout's masks in Triton: the hash of `gnnhpc.kernels.mask`, in 32 bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keeps(entries, first, second, threshold):
    """Whether entries stay: their numbers modulo 2**32, and a mask's three as signed numbers."""
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
    do_not_specialize_on_alignment=["x", "rows", "out"],
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

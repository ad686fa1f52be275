"""Programs of tests alone: parts of programs that no graph reaches."""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.triton.sampling_programs import bounded_number
from gnnhpc.kernels.triton.vig_programs import gelu, gelu_slope, normal_tail


@triton.jit(do_not_specialize=["low", "high", "step", "bound", "layer"])
def bounded_numbers(found, low, high, step, bound, layer, ROWS: tl.constexpr, DRAWS: tl.constexpr):
    """`found` [ROWS, DRAWS]: numbers below `bound` of nodes 0 to ROWS - 1."""
    low, high = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    step, layer = step.to(tl.uint32, bitcast=True), layer.to(tl.uint32, bitcast=True)
    node = tl.arange(0, ROWS)
    limit = tl.zeros([ROWS], tl.uint32) + bound.to(tl.uint32, bitcast=True)
    place = tl.zeros([ROWS], tl.uint32)
    for draw in range(DRAWS):
        number, place = bounded_number(
            limit, node >= 0, node.to(tl.uint32), step, layer, low, high, place
        )
        tl.store(found + node * DRAWS + draw, number)


@triton.jit
def gelus(a, value, slope, SIZE: tl.constexpr):
    """GELU of a [SIZE], and its derivative."""
    at = tl.arange(0, SIZE)
    number = tl.load(a + at)
    bell, factor = normal_tail(tl.abs(number))
    tl.store(value + at, gelu(number, bell, factor))
    tl.store(slope + at, gelu_slope(number, bell, factor))

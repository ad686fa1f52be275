"""Triton programs that sample the neighbours of a mini-batch's rows and number the nodes reached.

Random numbers are those of `cpp/picks.h`: Philox 4x32-10 with the seed as key and (node, step,
layer, place / 4) as counter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def random_number(node, step, layer, low, high, place):
    """uint32: random number `place` of each node; a Philox counter makes four at once."""
    a, b, c, d = node, tl.zeros_like(node) + step, tl.zeros_like(node) + layer, place // 4
    for _ in tl.static_range(10):
        was_a, was_c = a, c
        a = tl.umulhi(was_c, 0xCD9E8D57) ^ b ^ low
        c = tl.umulhi(was_a, 0xD2511F53) ^ d ^ high
        b = was_c * 0xCD9E8D57
        d = was_a * 0xD2511F53
        low += 0x9E3779B9
        high += 0xBB67AE85
    word = place % 4
    return tl.where(word == 0, a, tl.where(word == 1, b, tl.where(word == 2, c, d)))


@triton.jit
def bounded_number(bound, active, node, step, layer, low, high, place):
    """A number below `bound` for each active node, all equally likely, and the next place (Lemire
    2019, algorithm 5)."""
    number = random_number(node, step, layer, low, high, place)
    place += 1
    least = (tl.zeros_like(bound) - bound) % bound
    refused = active & (number * bound < least)
    while tl.max(refused.to(tl.int32), 0) > 0:
        again = random_number(node, step, layer, low, high, place)
        number = tl.where(refused, again, number)
        place += refused.to(tl.uint32)
        refused = refused & (number * bound < least)
    return tl.umulhi(number, bound).to(tl.int32), place


@triton.jit
def column_of(values, place, column):
    """[rows]: one column of `values` [rows, WIDE]."""
    return tl.sum(tl.where(place == column, values, 0), 1)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["nodes", "drawn"])
def count_edges(indptr, nodes, drawn, rows, FANOUT: tl.constexpr, AT_ONCE: tl.constexpr):
    """`drawn` [rows]: the edges that each row samples, with its edge to itself."""
    row = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    real = row < rows
    node = tl.load(nodes + row, mask=real, other=0)
    degree = tl.load(indptr + node + 1, mask=real, other=0)
    degree -= tl.load(indptr + node, mask=real, other=0)
    tl.store(drawn + row, tl.minimum(degree, FANOUT) + 1, mask=real)


@triton.jit(
    do_not_specialize=["rows", "edges", "low", "high", "step", "layer"],
    do_not_specialize_on_alignment=["nodes", "ends", "source", "target", "edge"],
)
def draw_edges(
    indptr,
    columns,
    nodes,
    ends,
    row_of,
    source,
    target,
    edge,
    marks,
    rows,
    edges,
    low,
    high,
    step,
    layer,
    FANOUT: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sample the edges of ROWS rows, from `ends[row]` on: `edge` gets their numbers, ascending,
    `source` the nodes at their other ends, and `target` the row. A row's edge to itself comes last.
    `marks` is set for nodes that have no row as yet.

    WIDE is a power of two no less than FANOUT. The two keys, step and layer are signed numbers of
    32 bits.
    """
    low, high = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    step, layer = step.to(tl.uint32, bitcast=True), layer.to(tl.uint32, bitcast=True)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, WIDE)[None, :]
    real = row < rows
    node = tl.load(nodes + row, mask=real, other=0)
    begin = tl.load(indptr + node, mask=real, other=0)
    degree = (tl.load(indptr + node + 1, mask=real, other=0) - begin).to(tl.int32)
    start = tl.load(ends + row, mask=real, other=0).to(tl.int64)
    count = tl.load(ends + row + 1, mask=real, other=1).to(tl.int64) - start - 1
    # Floyd's picks; where the fan-out is most of the edges, those are picked that stay out.
    draws = tl.maximum(tl.minimum(degree - FANOUT, FANOUT), 0)
    most = tl.max(draws, 0)
    chosen = tl.full([ROWS, WIDE], 0x7FFFFFFF, tl.int32)
    next_place = tl.zeros([ROWS], tl.uint32)
    for draw in range(most):
        active = draw < draws
        bound = tl.where(active, degree - draws + draw + 1, 1)
        number, next_place = bounded_number(
            bound.to(tl.uint32), active, node.to(tl.uint32), step, layer, low, high, next_place
        )
        taken = tl.max((chosen == number[:, None]).to(tl.int32), 1) > 0
        number = tl.where(taken, bound - 1, number)
        chosen = tl.where((place == draw) & active[:, None], number[:, None], chosen)
    rank, left_out = tl.zeros([ROWS, WIDE], tl.int32), tl.zeros([ROWS, WIDE], tl.int32)
    for draw in range(most):
        rank += (column_of(chosen, place, draw)[:, None] < chosen).to(tl.int32)
    # An edge that stays out has as many kept ones before it as its number less its rank.
    kept_before = chosen - rank
    for draw in range(most):
        left_out += (column_of(kept_before, place, draw)[:, None] <= place).to(tl.int32)
    stay_in = (draws == FANOUT)[:, None]
    at, picked = tl.where(stay_in, rank, place), tl.where(stay_in, chosen, place + left_out)
    there = place < count[:, None]
    number = begin[:, None] + picked
    other = tl.load(columns + number, mask=there, other=0)
    tl.store(edge + start[:, None] + at, number, mask=there)
    tl.store(source + start[:, None] + at, other, mask=there)
    tl.store(target + start[:, None] + at, tl.broadcast_to(row[:, None], (ROWS, WIDE)), mask=there)
    reached = there & (tl.load(row_of + other, mask=there, other=0) < 0)
    tl.store(marks + other, 1, mask=reached)
    tl.store(edge + start + count, edges + node, mask=real)
    tl.store(source + start + count, node, mask=real)
    tl.store(target + start + count, row, mask=real)


@triton.jit(do_not_specialize=["before", "count"])
def number_nodes(marks, rank, row_of, nodes, before, count, AT_ONCE: tl.constexpr):
    """Marked nodes get the rows after the `before` first ones, ascending, and lose their marks;
    `rank` is the running count of marks."""
    node = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    new = tl.load(marks + node, mask=node < count, other=0) != 0
    row = tl.load(rank + node, mask=new, other=1) + before - 1
    tl.store(row_of + node, row, mask=new)
    tl.store(nodes + row, node, mask=new)
    tl.store(marks + node, 0, mask=new)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["ends", "source"])
def number_sources(source, ends, row_of, rows, AT_ONCE: tl.constexpr):
    """`source` [ends[rows]] becomes rows instead of nodes."""
    place = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = place < tl.load(ends + rows)
    node = tl.load(source + place, mask=there, other=0).to(tl.int64)
    tl.store(source + place, tl.load(row_of + node, mask=there, other=0), mask=there)

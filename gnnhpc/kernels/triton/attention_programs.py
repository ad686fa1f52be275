"""Triton programs of attention: one computes one row.

GAT and GATv2 (V2) differ in the score of an edge: in GAT `of_source` and `of_targets` are numbers
[rows, H], in GATv2 features [rows, H, C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.triton.edge_programs import (
    by_head,
    dropped,
    ends,
    features,
    layout,
    leaky,
    mean_d_share,
    piece,
    weights,
    with_scores,
)


@triton.jit(do_not_specialize=["rows_in", "rows_out"])
def gat_scores(
    h,
    att_source,
    att_target,
    of_source,
    of_target,
    rows_in,
    rows_out,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Both products of `h` [rows_in, H, C] with the attention's vectors: [rows_in, H] as a source,
    [rows_out, H] as a target."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    as_source = tl.load(att_source + of_row, mask=inside, other=0.0)
    as_target = tl.load(att_target + of_row, mask=inside, other=0.0)
    there = (row < rows_in)[:, None, None] & inside[None, :, :]
    value = tl.load(h + row[:, None, None] * (H * C) + of_row[None, :, :], mask=there, other=0.0)
    place = row[:, None] * H + head[None, :]
    real = (head < H)[None, :]
    source = tl.sum(value * as_source[None, :, :], 2)
    tl.store(of_source + place, source, mask=(row < rows_in)[:, None] & real)
    target = tl.sum(value * as_target[None, :, :], 2)
    tl.store(of_target + place, target, mask=(row < rows_out)[:, None] & real)


@triton.jit
def scores(of_source, target, vector, origin, there, head, of_row, inside, SLOPE, H, C, V2):
    """Scores of some edges into one row, whose own number or features are `target`."""
    if V2:
        both = features(of_source, origin, there, of_row, inside, H, C) + target[None, :, :]
        found = tl.sum(leaky(both, SLOPE) * vector[None, :, :], 2)
    else:
        found = leaky(by_head(of_source, origin, there, head, H) + target[None, :], SLOPE)
    return found


@triton.jit
def of_target(of, vectors, row, head, of_row, inside, H, C, V2):
    """What scores of edges into one row share: its number, or its features and the vector."""
    if V2:
        target = tl.load(of + row * (H * C) + of_row, mask=inside, other=0.0)
        vector = tl.load(vectors + of_row, mask=inside, other=0.0)
    else:
        target = tl.load(of + row * H + head, mask=head < H, other=0.0)
        vector = target
    return target, vector


@triton.jit(
    do_not_specialize=["first", "second", "threshold"],
    do_not_specialize_on_alignment=["indptr", "source", "edge", "first", "second"],
)
def attention_forward(
    h,
    of_source,
    of_targets,
    vectors,
    indptr,
    source,
    edge,
    out,
    softmax,
    first,
    second,
    threshold,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """A target's sum of its sources' rows: out [rows_out, H, C]; and of each edge the softmax
    [edges, H], negative where dropout removes it."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    target, vector = of_target(of_targets, vectors, row, head, of_row, inside, H, C, V2)
    most = tl.full([HEADS], float("-inf"), target.dtype)
    total = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        score = scores(
            *(of_source, target, vector, origin, there, head, of_row, inside, SLOPE, H, C, V2)
        )
        most, total = with_scores(most, total, score, place, end)
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        score = scores(
            *(of_source, target, vector, origin, there, head, of_row, inside, SLOPE, H, C, V2)
        )
        share = tl.exp(score - most[None, :]) / total[None, :]
        signed = dropped(softmax, edge, share, place, there, end, head, first, second, threshold, H)
        weight = weights(signed, share, SCALE)
        value = features(h, origin, there, of_row, inside, H, C)
        result += tl.sum(tl.where(there, weight, 0.0)[:, :, None] * value, 0)
    tl.store(out + row * (H * C) + of_row, result, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indptr", "source"])
def attention_backward_targets(
    upstream,
    h,
    of_source,
    of_targets,
    vectors,
    softmax,
    indptr,
    source,
    d_score,
    d_target,
    d_vector,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """For one target: its edges' gradients, of GAT before the leaky ReLU, of GATv2 of the score;
    and the gradient of its number in GAT, of its features and its part of the vector's in GATv2."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    of_output = tl.load(upstream + row * (H * C) + of_row, mask=inside, other=0.0)
    target, vector = of_target(of_targets, vectors, row, head, of_row, inside, H, C, V2)
    mean = mean_d_share(
        *(h, of_output, softmax, source, d_score, begin, end, head, of_row, inside),
        *(SCALE, H, C, HEADS, EDGES),
    )
    # The gradients of the softmax lie in `d_score`. Threads read what other threads wrote there,
    # and all of them have before one writes the score's gradient in its place.
    tl.debug_barrier()
    together = tl.zeros([HEADS], of_output.dtype)
    result = tl.zeros([HEADS, CHANNELS], of_output.dtype)
    of_vector = tl.zeros([HEADS, CHANNELS], of_output.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        signed = by_head(softmax, place, there, head, H)
        d_share = by_head(d_score, place, there, head, H)
        tl.debug_barrier()
        found = tl.where(there, tl.abs(signed) * (d_share - mean[None, :]), 0.0)
        if V2:
            both = features(h, origin, there, of_row, inside, H, C) + target[None, :, :]
            of_vector += tl.sum(found[:, :, None] * leaky(both, SLOPE), 0)
            result += tl.sum(tl.where(both > 0, found[:, :, None], found[:, :, None] * SLOPE), 0)
        else:
            raw = by_head(of_source, origin, there, head, H) + target[None, :]
            found = tl.where(raw <= 0, found * SLOPE, found)
            together += tl.sum(found, 0)
        tl.store(d_score + place[:, None] * H + head[None, :], found, mask=there)
    if V2:
        tl.store(d_target + row * (H * C) + of_row, result * vector, mask=inside)
        tl.store(d_vector + row * (H * C) + of_row, of_vector, mask=inside)
    else:
        tl.store(d_target + row * H + head, together, mask=head < H)


@triton.jit(
    do_not_specialize=["rows_out"],
    do_not_specialize_on_alignment=["indptr", "edge", "target"],
)
def attention_backward_sources(
    upstream,
    h,
    of_targets,
    vectors,
    softmax,
    d_score,
    d_target,
    indptr,
    edge,
    target,
    d_source,
    d_h,
    rows_out,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    V2: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """For one source, whose edges are those of the block's transpose: the gradient of its features
    [rows_in, H, C], and in GAT the sum of its edges' gradients [rows_in, H].

    `vectors` are GATv2's [H, C], or GAT's of sources and of targets [2, H, C].
    """
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    vector = tl.load(vectors + of_row, mask=inside, other=0.0)
    if V2:
        mine = tl.load(h + row * (H * C) + of_row, mask=inside, other=0.0)
    together = tl.zeros([HEADS], vector.dtype)
    result = tl.zeros([HEADS, CHANNELS], vector.dtype)
    for at in range(begin, end, EDGES):
        place, there, number = piece(edge, at, end, head, H, EDGES)
        signed = by_head(softmax, number, there, head, H)
        weight = weights(signed, signed, SCALE)
        goal = tl.load(target + place, mask=place < end, other=0).to(tl.int64)
        of_output = features(upstream, goal, there, of_row, inside, H, C)
        found = by_head(d_score, number, there, head, H)
        if V2:
            both = features(of_targets, goal, there, of_row, inside, H, C) + mine[None, :, :]
            fallen = tl.where(both > 0, vector[None, :, :], vector[None, :, :] * SLOPE)
            result += tl.sum(weight[:, :, None] * of_output + found[:, :, None] * fallen, 0)
        else:
            together += tl.sum(found, 0)
            result += tl.sum(weight[:, :, None] * of_output, 0)
    if not V2:
        tl.store(d_source + row * H + head, together, mask=head < H)
        result += together[:, None] * vector
        as_target = tl.load(vectors + H * C + of_row, mask=inside, other=0.0)
        # Sources that are no targets come last.
        heads = tl.where(row < rows_out, H, 0)
        of_row_target = tl.load(d_target + row * H + head, mask=head < heads, other=0.0)
        result += of_row_target[:, None] * as_target
    tl.store(d_h + row * (H * C) + of_row, result, mask=inside)

"""Graph attention in Triton, as `gnnhpc.kernels.gat_torch` has it: a program computes one row."""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.gpu.programs.edges import (
    by_head,
    d_shares,
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
def scores(
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


@triton.jit(
    do_not_specialize=["first", "second", "threshold"],
    do_not_specialize_on_alignment=["indptr", "source", "edge"],
)
def forward(
    h,
    of_source,
    of_target,
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
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """A target's sum of its sources' rows: out [rows_out, H, C]; and of each edge the softmax
    [edges, H], negative where dropout took it."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    target = tl.load(of_target + row * H + head, mask=head < H, other=0.0)
    most = tl.full([HEADS], float("-inf"), target.dtype)
    total = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        score = leaky(by_head(of_source, origin, there, head, H) + target[None, :], SLOPE)
        most, total = with_scores(most, total, score, place, end)
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        score = leaky(by_head(of_source, origin, there, head, H) + target[None, :], SLOPE)
        share = tl.exp(score - most[None, :]) / total[None, :]
        signed = dropped(softmax, edge, share, place, there, end, head, first, second, threshold, H)
        weight = weights(signed, share, SCALE)
        value = features(h, origin, there, of_row, inside, H, C)
        result += tl.sum(tl.where(there, weight, 0.0)[:, :, None] * value, 0)
    tl.store(out + row * (H * C) + of_row, result, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indptr", "source"])
def backward_of_scores(
    upstream,
    h,
    of_source,
    of_target,
    softmax,
    indptr,
    source,
    d_raw,
    d_target,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Of one target: each edge's gradient before the leaky ReLU, and the sum of these."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    given = tl.load(upstream + row * (H * C) + of_row, mask=inside, other=0.0)
    target = tl.load(of_target + row * H + head, mask=head < H, other=0.0)
    mean = mean_d_share(
        *(h, given, softmax, source, begin, end, head, of_row, inside),
        *(SCALE, H, C, HEADS, EDGES),
    )
    together = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        value = features(h, origin, there, of_row, inside, H, C)
        signed = by_head(softmax, place, there, head, H)
        d_share = d_shares(value, given, signed, SCALE)
        d_score = tl.abs(signed) * (d_share - mean[None, :])
        score = by_head(of_source, origin, there, head, H)
        raw = tl.where(score + target[None, :] <= 0, d_score * SLOPE, d_score)
        tl.store(d_raw + place[:, None] * H + head[None, :], raw, mask=there)
        together += tl.sum(tl.where(there, raw, 0.0), 0)
    tl.store(d_target + row * H + head, together, mask=head < H)


@triton.jit(
    do_not_specialize=["rows_out"],
    do_not_specialize_on_alignment=["indptr", "edge", "target"],
)
def backward_of_features(
    upstream,
    softmax,
    d_raw,
    d_target,
    att_source,
    att_target,
    indptr,
    edge,
    target,
    d_source,
    d_h,
    rows_out,
    SCALE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Of one source, whose edges are those of the block's transpose: the sum of their gradients
    [rows_in, H], and the gradient of its features [rows_in, H, C]."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    as_source = tl.load(att_source + of_row, mask=inside, other=0.0)
    as_target = tl.load(att_target + of_row, mask=inside, other=0.0)
    together = tl.zeros([HEADS], as_source.dtype)
    result = tl.zeros([HEADS, CHANNELS], as_source.dtype)
    for at in range(begin, end, EDGES):
        place, there, number = piece(edge, at, end, head, H, EDGES)
        together += tl.sum(by_head(d_raw, number, there, head, H), 0)
        signed = by_head(softmax, number, there, head, H)
        weight = weights(signed, signed, SCALE)
        goal = tl.load(target + place, mask=place < end, other=0).to(tl.int64)
        given = features(upstream, goal, there, of_row, inside, H, C)
        result += tl.sum(weight[:, :, None] * given, 0)
    tl.store(d_source + row * H + head, together, mask=head < H)
    result += together[:, None] * as_source
    # Sources that are no targets come last.
    heads = tl.where(row < rows_out, H, 0)
    result += tl.load(d_target + row * H + head, mask=head < heads, other=0.0)[:, None] * as_target
    tl.store(d_h + row * (H * C) + of_row, result, mask=inside)

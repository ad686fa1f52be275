"""GATv2's attention in Triton: a program computes one row, as in `attention`.

Features of sources are [rows_in, H, C], of targets [rows_out, H, C].
"""

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


@triton.jit(
    do_not_specialize=["first", "second", "threshold"],
    do_not_specialize_on_alignment=["indptr", "source", "edge"],
)
def forward(
    of_source,
    of_target,
    attention,
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
    target = tl.load(of_target + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    most = tl.full([HEADS], float("-inf"), target.dtype)
    total = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        value = features(of_source, origin, there, of_row, inside, H, C)
        score = tl.sum(leaky(value + target[None, :, :], SLOPE) * vector[None, :, :], 2)
        most, total = with_scores(most, total, score, place, end)
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        value = features(of_source, origin, there, of_row, inside, H, C)
        score = tl.sum(leaky(value + target[None, :, :], SLOPE) * vector[None, :, :], 2)
        share = tl.exp(score - most[None, :]) / total[None, :]
        signed = dropped(softmax, edge, share, place, there, end, head, first, second, threshold, H)
        weight = weights(signed, share, SCALE)
        result += tl.sum(tl.where(there, weight, 0.0)[:, :, None] * value, 0)
    tl.store(out + row * (H * C) + of_row, result, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indptr", "source"])
def backward_of_targets(
    upstream,
    of_source,
    of_target,
    attention,
    softmax,
    indptr,
    source,
    d_score,
    d_target,
    d_attention,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Of one target: the gradients of its edges' scores, of its features, and its part of that of
    the attention's vector."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    given = tl.load(upstream + row * (H * C) + of_row, mask=inside, other=0.0)
    target = tl.load(of_target + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    mean = mean_d_share(
        *(of_source, given, softmax, source, begin, end, head, of_row, inside),
        *(SCALE, H, C, HEADS, EDGES),
    )
    of_vector = tl.zeros([HEADS, CHANNELS], target.dtype)
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        value = features(of_source, origin, there, of_row, inside, H, C)
        signed = by_head(softmax, place, there, head, H)
        d_share = d_shares(value, given, signed, SCALE)
        found = tl.where(there, tl.abs(signed) * (d_share - mean[None, :]), 0.0)
        tl.store(d_score + place[:, None] * H + head[None, :], found, mask=there)
        both = value + target[None, :, :]
        of_vector += tl.sum(found[:, :, None] * leaky(both, SLOPE), 0)
        result += tl.sum(tl.where(both > 0, found[:, :, None], found[:, :, None] * SLOPE), 0)
    tl.store(d_target + row * (H * C) + of_row, result * vector, mask=inside)
    tl.store(d_attention + row * (H * C) + of_row, of_vector, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indptr", "edge", "target"])
def backward_of_sources(
    upstream,
    of_source,
    of_target,
    attention,
    softmax,
    d_score,
    indptr,
    edge,
    target,
    d_source,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Of one source, whose edges are those of the block's transpose: the gradient of its features
    [rows_in, H, C]."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = ends(indptr, row)
    head, of_row, inside = layout(H, C, HEADS, CHANNELS)
    mine = tl.load(of_source + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    result = tl.zeros([HEADS, CHANNELS], mine.dtype)
    for at in range(begin, end, EDGES):
        place, there, number = piece(edge, at, end, head, H, EDGES)
        signed = by_head(softmax, number, there, head, H)
        weight = weights(signed, signed, SCALE)
        goal = tl.load(target + place, mask=place < end, other=0).to(tl.int64)
        given = features(upstream, goal, there, of_row, inside, H, C)
        both = features(of_target, goal, there, of_row, inside, H, C) + mine[None, :, :]
        fallen = tl.where(both > 0, vector[None, :, :], vector[None, :, :] * SLOPE)
        found = by_head(d_score, number, there, head, H)
        result += tl.sum(weight[:, :, None] * given + found[:, :, None] * fallen, 0)
    tl.store(d_source + row * (H * C) + of_row, result, mask=inside)

"""GATv2's attention in Triton: a program computes one row, as in `attention`.

Features of sources are [rows_in, H, C], of targets [rows_out, H, C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.gpu.programs.attention import d_shares
from gnnhpc.kernels.gpu.programs.masks import keeps


@triton.jit
def leaky(x, SLOPE: tl.constexpr):
    return tl.where(x > 0, x, x * SLOPE)


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
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    target = tl.load(of_target + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    most = tl.full([HEADS], float("-inf"), target.dtype)
    total = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        within = there[:, :, None] & inside[None, :, :]
        value = tl.load(of_source + at_value, mask=within, other=0.0)
        score = tl.sum(leaky(value + target[None, :, :], SLOPE) * vector[None, :, :], 2)
        score = tl.where((place < end)[:, None], score, float("-inf"))
        larger = tl.maximum(most, tl.max(score, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(score - larger[None, :]), 0)
        most = larger
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        within = there[:, :, None] & inside[None, :, :]
        value = tl.load(of_source + at_value, mask=within, other=0.0)
        score = tl.sum(leaky(value + target[None, :, :], SLOPE) * vector[None, :, :], 2)
        share = tl.exp(score - most[None, :]) / total[None, :]
        number = tl.load(edge + place, mask=place < end, other=0).to(tl.uint32)
        kept = keeps(number[:, None] * H + head[None, :].to(tl.uint32), first, second, threshold)
        signed = tl.where(kept, share, -share)
        tl.store(softmax + place[:, None] * H + head[None, :], signed, mask=there)
        # What is no number stays none.
        weight = tl.where(signed < 0, 0.0, share) * SCALE
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
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    given = tl.load(upstream + row * (H * C) + of_row, mask=inside, other=0.0)
    target = tl.load(of_target + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    mean = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        within = there[:, :, None] & inside[None, :, :]
        value = tl.load(of_source + at_value, mask=within, other=0.0)
        signed = tl.load(softmax + place[:, None] * H + head[None, :], mask=there, other=0.0)
        d_share = d_shares(value, given, signed, SCALE)
        mean += tl.sum(tl.where(there, tl.abs(signed) * d_share, 0.0), 0)
    of_vector = tl.zeros([HEADS, CHANNELS], target.dtype)
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        within = there[:, :, None] & inside[None, :, :]
        value = tl.load(of_source + at_value, mask=within, other=0.0)
        signed = tl.load(softmax + place[:, None] * H + head[None, :], mask=there, other=0.0)
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
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    mine = tl.load(of_source + row * (H * C) + of_row, mask=inside, other=0.0)
    vector = tl.load(attention + of_row, mask=inside, other=0.0)
    result = tl.zeros([HEADS, CHANNELS], mine.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        number = tl.load(edge + place, mask=place < end, other=0).to(tl.int64)
        of_edge = number[:, None] * H + head[None, :]
        signed = tl.load(softmax + of_edge, mask=there, other=0.0)
        weight = tl.where(signed < 0, 0.0, signed) * SCALE
        goal = tl.load(target + place, mask=place < end, other=0).to(tl.int64)
        at_goal = goal[:, None, None] * (H * C) + of_row[None, :, :]
        within = there[:, :, None] & inside[None, :, :]
        given = tl.load(upstream + at_goal, mask=within, other=0.0)
        both = tl.load(of_target + at_goal, mask=within, other=0.0) + mine[None, :, :]
        fallen = tl.where(both > 0, vector[None, :, :], vector[None, :, :] * SLOPE)
        found = tl.load(d_score + of_edge, mask=there, other=0.0)
        result += tl.sum(weight[:, :, None] * given + found[:, :, None] * fallen, 0)
    tl.store(d_source + row * (H * C) + of_row, result, mask=inside)

"""Graph attention in Triton, as `gnnhpc.kernels.gat_torch` has it: a program computes one row.

Features are [rows, H, C]; HEADS and CHANNELS are powers of two no less than H and C. Of a row's
edges some are read at once, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.gpu.programs.masks import keeps


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
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
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
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    target = tl.load(of_target + row * H + head, mask=head < H, other=0.0)
    # Each head's largest score so far, and the sum of exponentials relative to it.
    most = tl.full([HEADS], float("-inf"), target.dtype)
    total = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        score = tl.load(of_source + origin[:, None] * H + head[None, :], mask=there, other=0.0)
        score += target[None, :]
        score = tl.where(score > 0, score, score * SLOPE)
        score = tl.where((place < end)[:, None], score, float("-inf"))
        larger = tl.maximum(most, tl.max(score, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(score - larger[None, :]), 0)
        most = larger
    result = tl.zeros([HEADS, CHANNELS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        score = tl.load(of_source + origin[:, None] * H + head[None, :], mask=there, other=0.0)
        score += target[None, :]
        score = tl.where(score > 0, score, score * SLOPE)
        share = tl.exp(score - most[None, :]) / total[None, :]
        number = tl.load(edge + place, mask=place < end, other=0).to(tl.uint32)
        kept = keeps(number[:, None] * H + head[None, :].to(tl.uint32), first, second, threshold)
        signed = tl.where(kept, share, -share)
        tl.store(softmax + place[:, None] * H + head[None, :], signed, mask=there)
        # What is no number stays none.
        weight = tl.where(signed < 0, 0.0, share) * SCALE
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        value = tl.load(h + at_value, mask=there[:, :, None] & inside[None, :, :], other=0.0)
        result += tl.sum(tl.where(there, weight, 0.0)[:, :, None] * value, 0)
    tl.store(out + row * (H * C) + of_row, result, mask=inside)


@triton.jit
def d_shares(value, given, signed, SCALE: tl.constexpr):
    """Gradients of the softmax of some edges: of those that dropout took none."""
    return tl.where(signed < 0, 0.0, tl.sum(value * given[None, :, :], 2) * SCALE)


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
    """Of one target: each edge's gradient before the leaky ReLU, and the sum of these.

    The softmax's sum over the edges, of share times gradient, is that of the output times its
    gradient too (Dao et al. 2022, appendix B.2); but where one edge has all of the softmax, that
    would differ from its gradient by rounding, and its score would get a gradient.
    """
    row = tl.program_id(0).to(tl.int64)
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    given = tl.load(upstream + row * (H * C) + of_row, mask=inside, other=0.0)
    target = tl.load(of_target + row * H + head, mask=head < H, other=0.0)
    mean = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        value = tl.load(h + at_value, mask=there[:, :, None] & inside[None, :, :], other=0.0)
        signed = tl.load(softmax + place[:, None] * H + head[None, :], mask=there, other=0.0)
        d_share = d_shares(value, given, signed, SCALE)
        mean += tl.sum(tl.where(there, tl.abs(signed) * d_share, 0.0), 0)
    together = tl.zeros([HEADS], target.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        origin = tl.load(source + place, mask=place < end, other=0).to(tl.int64)
        at_value = origin[:, None, None] * (H * C) + of_row[None, :, :]
        value = tl.load(h + at_value, mask=there[:, :, None] & inside[None, :, :], other=0.0)
        signed = tl.load(softmax + place[:, None] * H + head[None, :], mask=there, other=0.0)
        d_share = d_shares(value, given, signed, SCALE)
        d_score = tl.abs(signed) * (d_share - mean[None, :])
        score = tl.load(of_source + origin[:, None] * H + head[None, :], mask=there, other=0.0)
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
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    inside = (head[:, None] < H) & (channel[None, :] < C)
    as_source = tl.load(att_source + of_row, mask=inside, other=0.0)
    as_target = tl.load(att_target + of_row, mask=inside, other=0.0)
    together = tl.zeros([HEADS], as_source.dtype)
    result = tl.zeros([HEADS, CHANNELS], as_source.dtype)
    for at in range(begin, end, EDGES):
        place = at + tl.arange(0, EDGES)
        there = (place < end)[:, None] & (head < H)[None, :]
        number = tl.load(edge + place, mask=place < end, other=0).to(tl.int64)
        of_edge = number[:, None] * H + head[None, :]
        together += tl.sum(tl.load(d_raw + of_edge, mask=there, other=0.0), 0)
        signed = tl.load(softmax + of_edge, mask=there, other=0.0)
        weight = tl.where(signed < 0, 0.0, signed) * SCALE
        goal = tl.load(target + place, mask=place < end, other=0).to(tl.int64)
        at_given = goal[:, None, None] * (H * C) + of_row[None, :, :]
        given = tl.load(upstream + at_given, mask=there[:, :, None] & inside[None, :, :], other=0.0)
        result += tl.sum(weight[:, :, None] * given, 0)
    tl.store(d_source + row * H + head, together, mask=head < H)
    result += together[:, None] * as_source
    # Sources that are no targets come last.
    heads = tl.where(row < rows_out, H, 0)
    result += tl.load(d_target + row * H + head, mask=head < heads, other=0.0)[:, None] * as_target
    tl.store(d_h + row * (H * C) + of_row, result, mask=inside)

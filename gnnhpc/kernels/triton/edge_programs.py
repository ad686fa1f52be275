"""What programs of attention have in common: the edges of one row, some of them at a time.

Features are [rows, H, C]; HEADS and CHANNELS are powers of two no less than H and C. Arguments in
capitals are constants of the programs that call these functions. Of each edge and head there is a
softmax, negative where dropout removes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gnnhpc.kernels.triton.programs import keeps


@triton.jit
def leaky(x, SLOPE):
    """The leaky ReLU."""
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def ends(indptr, row):
    """The places at which a row's edges begin and end."""
    return tl.load(indptr + row).to(tl.int64), tl.load(indptr + row + 1).to(tl.int64)


@triton.jit
def layout(H, C, HEADS, CHANNELS):
    """Heads; the places of one row's features; and which of these are no padding."""
    head, channel = tl.arange(0, HEADS), tl.arange(0, CHANNELS)
    of_row = head[:, None] * C + channel[None, :]
    return head, of_row, (head[:, None] < H) & (channel[None, :] < C)


@triton.jit
def piece(ids, at, end, head, H, EDGES):
    """Some edges' places from `at` on; which of them, and of their heads, there are; and what `ids`
    has of each edge."""
    place = at + tl.arange(0, EDGES)
    there = (place < end)[:, None] & (head < H)[None, :]
    return place, there, tl.load(ids + place, mask=place < end, other=0).to(tl.int64)


@triton.jit
def by_head(of, rows, there, head, H):
    """A number of each head of these rows of `of` [rows, H]."""
    return tl.load(of + rows[:, None] * H + head[None, :], mask=there, other=0.0)


@triton.jit
def features(of, rows, there, of_row, inside, H, C):
    """These rows of `of` [rows, H, C]."""
    at = rows[:, None, None] * (H * C) + of_row[None, :, :]
    return tl.load(of + at, mask=there[:, :, None] & inside[None, :, :], other=0.0)


@triton.jit
def with_scores(most, total, score, place, end):
    """Each head's largest score until now and the sum of exponentials relative to it, with some
    more scores."""
    score = tl.where((place < end)[:, None], score, float("-inf"))
    larger = tl.maximum(most, tl.max(score, 0))
    total = total * tl.exp(most - larger) + tl.sum(tl.exp(score - larger[None, :]), 0)
    return larger, total


@triton.jit
def dropped(softmax, edge, share, place, there, end, head, first, second, threshold, H):
    """The softmax of some edges, negative where dropout takes it; which is stored."""
    number = tl.load(edge + place, mask=place < end, other=0).to(tl.uint32)
    kept = keeps(number[:, None] * H + head[None, :].to(tl.uint32), first, second, threshold)
    signed = tl.where(kept, share, -share)
    tl.store(softmax + place[:, None] * H + head[None, :], signed, mask=there)
    return signed


@triton.jit
def weights(signed, share, SCALE):
    """What is left of a softmax after dropout; what is no number stays none."""
    return tl.where(signed < 0, 0.0, share) * SCALE


@triton.jit
def mean_d_share(
    of, upstream, softmax, source, out, begin, end, head, of_row, inside, SCALE, H, C, HEADS, EDGES
):
    """Of each head, the sum over a target's edges of softmax times its gradient; the gradients go
    to `out` [edges, H].

    The sum is that of the output times its gradient `upstream` too (Dao et al. 2022, appendix B.2);
    but where one edge has all of the softmax, that would differ from the edge's own by rounding,
    and its score would get a gradient.
    """
    mean = tl.zeros([HEADS], upstream.dtype)
    for at in range(begin, end, EDGES):
        place, there, origin = piece(source, at, end, head, H, EDGES)
        value = features(of, origin, there, of_row, inside, H, C)
        signed = by_head(softmax, place, there, head, H)
        # Of edges that dropout took it is zero.
        d_share = tl.where(signed < 0, 0.0, tl.sum(value * upstream[None, :, :], 2) * SCALE)
        tl.store(out + place[:, None] * H + head[None, :], d_share, mask=there)
        mean += tl.sum(tl.where(there, tl.abs(signed) * d_share, 0.0), 0)
    return mean

"""Attention over a block's edges in plain torch: any device, any precision, bounded memory.

The same function as `gnnhpc.kernels.gat`, which has it in C++ for a CPU. Some rows are done at a
time, and what their edges need is computed again in backward, so that nothing of the size of edges
x heads x channels is ever held: for Reddit that would be 29 GB. Sums run over sorted segments,
targets' edges first, then sources': without atomic additions, and so the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.kernels import calls
from gnnhpc.kernels.mask import Mask, number_entries
from gnnhpc.kernels.segments import most_edges, of_rows, starts

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block


def attend(
    h: Tensor,
    att_source: Tensor,
    att_target: Tensor,
    block: Block,
    mask: Mask | None,
    slope: float,
) -> Tensor:
    """Each target's sum of h [rows_in, H, C] over its edges, weighted: [rows_out, H, C].

    Weights are the softmax over a target's edges of leaky_relu(att_source . h_source +
    att_target . h_target), masked; both vectors are [1, H, C].
    """
    calls.count(calls.TORCH, "attend_forward")
    of_source = (h * att_source).sum(-1)
    of_target = (h[: block.rows_out] * att_target).sum(-1)
    result: Tensor = _Attend.apply(h, of_source, of_target, block, mask, slope)  # type: ignore[no-untyped-call]
    return result


class _Edges(NamedTuple):
    """Some edges: the rows they come from and go to, and their numbers in the full graph."""

    source: Tensor
    target: Tensor
    number: Tensor


class _Weights(NamedTuple):
    """Of some edges, [edges, H] each: softmax, what the mask multiplies it by, LeakyReLU's slope
    there.
    """

    share: Tensor
    kept: Tensor | None
    slope: Tensor


@dataclass(frozen=True)
class _Scores:
    """Scores [rows, H] that edges add up; of each target, [rows_out, H], its edges' largest score
    and the sum of the softmax.
    """

    of_source: Tensor
    of_target: Tensor
    peak: Tensor
    total: Tensor
    mask: Mask | None
    slope: float

    def raw(self, edges: _Edges) -> Tensor:
        return self.of_source[edges.source] + self.of_target[edges.target]

    def kept(self, edges: _Edges) -> Tensor | None:
        if self.mask is None:
            return None
        heads = self.peak.shape[1]
        return self.mask.weights(number_entries(edges.number, heads), self.peak.dtype)

    def weights(self, edges: _Edges) -> _Weights:
        """Once peak and total of the edges' targets are known."""
        raw = self.raw(edges)
        score = functional.leaky_relu(raw, self.slope)
        share = (score - self.peak[edges.target]).exp_() / self.total[edges.target]
        slope = torch.full_like(raw, self.slope).masked_fill_(raw > 0, 1.0)
        return _Weights(share, self.kept(edges), slope)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        of_source: Tensor,
        of_target: Tensor,
        block: Block,
        mask: Mask | None,
        slope: float,
    ) -> Tensor:
        out = h.new_empty(block.rows_out, *h.shape[1:])
        peak, total = torch.empty_like(of_target), torch.empty_like(of_target)
        scores = _Scores(of_source, of_target, peak, total, mask, slope)
        for rows, places in block.pieces(most_edges(h, h.shape[1] * h.shape[2])):
            edges = _Edges(block.source[places], block.target[places], block.edge[places])
            first = starts(block.indptr, rows)
            score = functional.leaky_relu(scores.raw(edges), slope)
            peak[rows] = of_rows(score, first, "max")
            raised = (score - peak[edges.target]).exp_()
            total[rows] = of_rows(raised, first, "sum")
            weight = _product(raised.div_(total[edges.target]), scores.kept(edges))
            out[rows] = of_rows(weight[..., None] * h[edges.source], first, "sum")
        ctx.save_for_backward(h, of_source, of_target, peak, total)
        ctx.block, ctx.mask, ctx.slope = block, mask, slope
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        h, *saved = ctx.saved_tensors
        block: Block = ctx.block
        of_source, of_target, peak, total = saved
        scores = _Scores(of_source, of_target, peak, total, ctx.mask, ctx.slope)
        upstream = upstream.contiguous()
        d_target, mean = torch.empty_like(scores.peak), torch.empty_like(scores.peak)
        for rows, places in block.pieces(most_edges(h, h.shape[1] * h.shape[2])):
            edges = _Edges(block.source[places], block.target[places], block.edge[places])
            first = starts(block.indptr, rows)
            weights = scores.weights(edges)
            d_share = _d_share(h, upstream, edges, weights.kept)
            mean[rows] = of_rows(weights.share * d_share, first, "sum")
            d_target[rows] = of_rows(_d_raw(weights, d_share, mean, edges), first, "sum")
        d_source, d_h = torch.empty_like(scores.of_source), torch.empty_like(h)
        transpose = block.transpose
        for rows, places in transpose.pieces(most_edges(h, h.shape[1] * h.shape[2])):
            own = transpose.edge[places]
            edges = _Edges(block.source[own], transpose.target[places], block.edge[own])
            first = starts(transpose.indptr, rows)
            weights = scores.weights(edges)
            d_share = _d_share(h, upstream, edges, weights.kept)
            d_source[rows] = of_rows(_d_raw(weights, d_share, mean, edges), first, "sum")
            weight = _product(weights.share, weights.kept)
            d_h[rows] = of_rows(weight[..., None] * upstream[edges.target], first, "sum")
        return d_h, d_source, d_target, None, None, None


def _d_share(h: Tensor, upstream: Tensor, edges: _Edges, kept: Tensor | None) -> Tensor:
    """Gradient of the edges' softmax, [edges, H]."""
    return _product((upstream[edges.target] * h[edges.source]).sum(-1), kept)


def _d_raw(weights: _Weights, d_share: Tensor, mean: Tensor, edges: _Edges) -> Tensor:
    """Gradient of the edges' scores before the LeakyReLU; `mean` [rows_out, H] is the softmax's
    mean of its gradient.
    """
    return weights.share * (d_share - mean[edges.target]) * weights.slope


def _product(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor

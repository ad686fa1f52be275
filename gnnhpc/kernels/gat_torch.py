"""Attention over a block's edges in plain torch: any device, any precision, bounded memory.

The same function as `gnnhpc.kernels.gat`, which has it in C++ for a CPU. Some rows are done at a
time, so that nothing of the size of edges x heads x channels is ever held: for Reddit that would be
29 GB. Of each edge and head the softmax is kept for backward, its sign says whether dropout left
it. Sums run over sorted segments, targets' edges first, then sources': without atomic additions,
and so the same each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        heads = h.shape[1]
        out = h.new_empty(block.rows_out, *h.shape[1:])
        softmax = h.new_empty(len(block.source), heads)
        scale = 1.0 if mask is None else mask.scale
        for rows, places in block.pieces(most_edges(h, heads * h.shape[2])):
            source, target = block.source[places], block.target[places]
            # Of a piece's own rows.
            own, first = target - rows.start, starts(block.indptr, rows)
            score = functional.leaky_relu(of_source[source] + of_target[target], slope)
            raised = (score - of_rows(score, first, "max")[own]).exp_()
            share = raised.div_(of_rows(raised, first, "sum")[own])
            if mask is not None:
                keeps = mask.keeps(number_entries(block.edge[places], heads))
                share = torch.where(keeps, share, -share)
            softmax[places] = share
            weight = _weights(share, scale)
            out[rows] = of_rows(weight[..., None] * h[source], first, "sum")
        ctx.save_for_backward(h, of_source, of_target, softmax)
        ctx.block, ctx.scale, ctx.slope = block, scale, slope
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        calls.count(calls.TORCH, "attend_backward")
        h, of_source, of_target, softmax = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        most = most_edges(h, h.shape[1] * h.shape[2])
        d_target, d_raw = torch.empty_like(of_target), torch.empty_like(softmax)
        for rows, places in block.pieces(most):
            source, target, share = block.source[places], block.target[places], softmax[places]
            own, first = target - rows.start, starts(block.indptr, rows)
            d_share = (upstream[target] * h[source]).sum(-1)
            d_share.mul_(_kept(share, ctx.scale))
            share = share.abs()
            mean = of_rows(share * d_share, first, "sum")
            d_score = share.mul_(d_share.sub_(mean[own]))
            falls = of_source[source] + of_target[target] <= 0
            d_raw[places] = torch.where(falls, d_score * ctx.slope, d_score)
            d_target[rows] = of_rows(d_raw[places], first, "sum")
        d_source, d_h = torch.empty_like(of_source), torch.empty_like(h)
        transpose = block.transpose
        for rows, places in transpose.pieces(most):
            edge, target = transpose.edge[places], transpose.target[places]
            first = starts(transpose.indptr, rows)
            d_source[rows] = of_rows(d_raw[edge], first, "sum")
            weight = _weights(softmax[edge], ctx.scale)
            d_h[rows] = of_rows(weight[..., None] * upstream[target], first, "sum")
        return d_h, d_source, d_target, None, None, None


def _weights(share: Tensor, scale: float) -> Tensor:
    """What the softmax is after dropout: 0 where its sign says so; NaN stays."""
    return share.clamp(min=0.0).mul_(scale)


def _kept(share: Tensor, scale: float) -> Tensor:
    """What dropout multiplied the softmax by; one of 0 has a sign too."""
    return share.signbit().logical_not_().to(share.dtype).mul_(scale)

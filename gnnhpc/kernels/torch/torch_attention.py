"""Attention over a block's edges in plain torch: any device, any precision, bounded memory.

Some rows are computed at a time, so that nothing of the size of edges x heads x channels is ever
held: for Reddit that would be 29 GB. For backward the softmax of each edge and head is kept; it is
negative where dropout removes the edge. Sums run over sorted segments, targets' edges first, then
sources': without atomic additions, and so the same each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.kernels.dropout_mask import Mask, number_entries
from gnnhpc.kernels.neighbor_weights import SLOPE
from gnnhpc.kernels.torch.torch_aggregate import most_edges, of_rows, starts

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block


def attend(
    source: Tensor, target: Tensor | None, vectors: Tensor, block: Block, mask: Mask | None
) -> Tensor:
    """Each target's sum of source [rows_in, H, C] over its edges, weighted: [rows_out, H, C].

    GATv2 has features of targets, [rows_out, H, C], and one vector; GAT has two vectors [2, H, C].
    """
    args: tuple[Tensor | None, ...] = (source, target, vectors)
    if target is None:
        of_source = (source * vectors[:1]).sum(-1)
        of_target = (source[: block.rows_out] * vectors[1:]).sum(-1)
        args = of_source, of_target, None
    result: Tensor = _Attend.apply(source, *args, block, mask)  # type: ignore[no-untyped-call]
    return result


def _scores(source: Tensor, target: Tensor, vector: Tensor | None = None) -> Tensor:
    """Scores [edges, H]: in GAT of numbers [edges, H], in GATv2 of features and a vector."""
    bent = functional.leaky_relu(source + target, SLOPE)
    return bent if vector is None else (bent * vector).sum(-1)


class _Attend(torch.autograd.Function):
    """The sum of `values` [rows_in, H, C], with scores of sources, targets and a vector."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        of_source: Tensor,
        of_target: Tensor,
        vector: Tensor | None,
        block: Block,
        mask: Mask | None,
    ) -> Tensor:
        heads = values.shape[1]
        ctx.block, ctx.scale = block, 1.0 if mask is None else mask.scale
        out = values.new_empty(block.rows_out, *values.shape[1:])
        softmax = values.new_empty(len(block.source), heads)
        shared = () if vector is None else (vector,)
        for rows, places in block.pieces(most_edges(values, heads * values.shape[2])):
            source, target = block.source[places], block.target[places]
            row, first = target - rows.start, starts(block.indptr, rows)
            found = _scores(of_source[source], of_target[target], *shared)
            raised = (found - of_rows(found, first, "max")[row]).exp_()
            share = raised.div_(of_rows(raised, first, "sum")[row])
            if mask is not None:
                keeps = mask.keeps(number_entries(block.edge[places], heads))
                share = torch.where(keeps, share, -share)
            softmax[places] = share
            weight = _weights(share, ctx.scale)
            out[rows] = of_rows(weight[..., None] * values[source], first, "sum")
        ctx.save_for_backward(values, of_source, of_target, softmax, *shared)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        values, of_source, of_target, softmax, *shared = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        most = most_edges(values, values.shape[1] * values.shape[2])
        d_score, d_target = torch.empty_like(softmax), torch.empty_like(of_target)
        d_vector = [torch.zeros_like(each) for each in shared]
        for rows, places in block.pieces(most):
            source, target, share = block.source[places], block.target[places], softmax[places]
            row, first = target - rows.start, starts(block.indptr, rows)
            d_share = (upstream[target] * values[source]).sum(-1)
            d_share.mul_(_kept(share, ctx.scale))
            share = share.abs()
            mean = of_rows(share * d_share, first, "sum")
            d_score[places] = share.mul_(d_share.sub_(mean[row]))
            inputs = (of_source[source], of_target[target], *shared)
            _, of_targets, *of_vector = _gradients(inputs, d_score[places])
            d_target[rows] = of_rows(of_targets, first, "sum")
            for total, part in zip(d_vector, of_vector, strict=True):
                total.add_(part)
        d_source, d_values = torch.empty_like(of_source), torch.empty_like(values)
        transpose = block.transpose
        for rows, places in transpose.pieces(most):
            edge, target = transpose.edge[places], transpose.target[places]
            first = starts(transpose.indptr, rows)
            inputs = (of_source[block.source[edge]], of_target[target], *shared)
            of_sources, *_ = _gradients(inputs, d_score[edge])
            d_source[rows] = of_rows(of_sources, first, "sum")
            weight = _weights(softmax[edge], ctx.scale)
            d_values[rows] = of_rows(weight[..., None] * upstream[target], first, "sum")
        return d_values, d_source, d_target, d_vector[0] if shared else None, None, None


def _gradients(inputs: tuple[Tensor, ...], d_score: Tensor) -> tuple[Tensor, ...]:
    """Gradients of what some edges' scores are computed from."""
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in inputs]
        # Of a number: where torch is given a gradient it imports sympy, which takes half a second.
        return torch.autograd.grad((_scores(*leaves) * d_score).sum(), leaves)


def _weights(share: Tensor, scale: float) -> Tensor:
    """What the softmax is after dropout: 0 where its sign says so; NaN stays."""
    return share.clamp(min=0.0).mul_(scale)


def _kept(share: Tensor, scale: float) -> Tensor:
    """What dropout multiplied the softmax by; one of 0 has a sign too."""
    return share.signbit().logical_not_().to(share.dtype).mul_(scale)

"""Graph attention on a GPU: `gnnhpc.kernels.gat_torch`'s function, and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import calls
from gnnhpc.kernels.gpu.here import launch, mask_arguments, of_attention
from gnnhpc.kernels.gpu.programs import attention as programs
from gnnhpc.kernels.mask import Mask

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
    args = (h, att_source, att_target, block, mask, slope)
    result: Tensor = _Attend.apply(*args)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        att_source: Tensor,
        att_target: Tensor,
        block: Block,
        mask: Mask | None,
        slope: float,
    ) -> Tensor:
        calls.count(calls.TRITON, "attend_forward")
        h, att_source, att_target = h.contiguous(), att_source.contiguous(), att_target.contiguous()
        rows_in, heads, channels = h.shape
        ctx.sizes = of_attention(h)
        # A program computes the scores of as many rows as others read edges.
        rows = ctx.sizes["EDGES"]
        of_source, of_target = h.new_empty(rows_in, heads), h.new_empty(block.rows_out, heads)
        out = h.new_empty(block.rows_out, heads, channels)
        softmax = h.new_empty(len(block.source), heads)
        scale = 1.0 if mask is None else mask.scale
        launch(
            programs.scores,
            (-(-rows_in // rows),),
            *(h, att_source, att_target, of_source, of_target, rows_in, block.rows_out),
            like=h,
            **{name: size for name, size in ctx.sizes.items() if name != "EDGES"},
            ROWS=rows,
        )
        launch(
            programs.forward,
            (block.rows_out,),
            *(h, of_source, of_target, block.indptr, block.source, block.edge, out, softmax),
            *mask_arguments(mask),
            like=h,
            SLOPE=slope,
            SCALE=scale,
            **ctx.sizes,
        )
        ctx.save_for_backward(h, att_source, att_target, of_source, of_target, softmax)
        ctx.block, ctx.scale, ctx.slope = block, scale, slope
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        calls.count(calls.TRITON, "attend_backward")
        h, att_source, att_target, of_source, of_target, softmax = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        d_raw, d_target = torch.empty_like(softmax), torch.empty_like(of_target)
        launch(
            programs.backward_of_scores,
            (block.rows_out,),
            *(upstream, h, of_source, of_target, softmax, block.indptr, block.source),
            *(d_raw, d_target),
            like=h,
            SLOPE=ctx.slope,
            SCALE=ctx.scale,
            **ctx.sizes,
        )
        transpose = block.transpose
        d_source, d_h = torch.empty_like(of_source), torch.empty_like(h)
        launch(
            programs.backward_of_features,
            (len(h),),
            *(upstream, softmax, d_raw, d_target, att_source, att_target),
            *(transpose.indptr, transpose.edge, transpose.target, d_source, d_h),
            block.rows_out,
            like=h,
            SCALE=ctx.scale,
            **ctx.sizes,
        )
        d_att_source = (d_source[..., None] * h).sum(0, keepdim=True)
        d_att_target = (d_target[..., None] * h[: block.rows_out]).sum(0, keepdim=True)
        return d_h, d_att_source, d_att_target, None, None, None

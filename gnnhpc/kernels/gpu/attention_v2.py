"""GATv2's attention on a GPU, and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels import calls
from gnnhpc.kernels.gpu.here import launch, mask_arguments, of_attention
from gnnhpc.kernels.gpu.programs import attention_v2 as programs
from gnnhpc.kernels.mask import Mask

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block


def attend(
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    block: Block,
    mask: Mask | None,
    slope: float,
) -> Tensor:
    """Each target's sum of source [rows_in, H, C] over its edges, weighted: [rows_out, H, C].

    Weights are the softmax over a target's edges of attention . leaky_relu(source + target),
    masked; target is [rows_out, H, C], attention [1, H, C].
    """
    args = (source, target, attention, block, mask, slope)
    result: Tensor = _Attend.apply(*args)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        source: Tensor,
        target: Tensor,
        attention: Tensor,
        block: Block,
        mask: Mask | None,
        slope: float,
    ) -> Tensor:
        calls.count(calls.TRITON, "attend_forward")
        source, target, attention = (x.contiguous() for x in (source, target, attention))
        out = torch.empty_like(target)
        softmax = source.new_empty(len(block.source), source.shape[1])
        ctx.scale = 1.0 if mask is None else mask.scale
        ctx.sizes = of_attention(source)
        launch(
            programs.forward,
            (block.rows_out,),
            *(source, target, attention, block.indptr, block.source, block.edge, out, softmax),
            *mask_arguments(mask),
            like=source,
            SLOPE=slope,
            SCALE=ctx.scale,
            **ctx.sizes,
        )
        ctx.save_for_backward(source, target, attention, softmax)
        ctx.block, ctx.slope = block, slope
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        calls.count(calls.TRITON, "attend_backward")
        source, target, attention, softmax = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        constants = {"SLOPE": ctx.slope, "SCALE": ctx.scale, **ctx.sizes}
        d_score, d_source = torch.empty_like(softmax), torch.empty_like(source)
        d_target, d_attention = torch.empty_like(target), torch.empty_like(target)
        launch(
            programs.backward_of_targets,
            (block.rows_out,),
            *(upstream, source, target, attention, softmax, block.indptr, block.source),
            *(d_score, d_target, d_attention),
            like=source,
            **constants,
        )
        transpose = block.transpose
        launch(
            programs.backward_of_sources,
            (len(source),),
            *(upstream, source, target, attention, softmax, d_score),
            *(transpose.indptr, transpose.edge, transpose.target, d_source),
            like=source,
            **constants,
        )
        return d_source, d_target, d_attention.sum(0, keepdim=True), None, None, None

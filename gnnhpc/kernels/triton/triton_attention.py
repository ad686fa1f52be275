"""Attention on a GPU, and its gradients, as `torch_attention` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.neighbor_weights import SLOPE
from gnnhpc.kernels.triton import attention_programs as programs
from gnnhpc.kernels.triton.launch import attention_sizes, launch, mask_arguments

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block


def attend(
    source: Tensor, target: Tensor | None, vectors: Tensor, block: Block, mask: Mask | None
) -> Tensor:
    """Each target's sum of source [rows_in, H, C] over its edges, weighted: [rows_out, H, C].

    GATv2 has features of targets, [rows_out, H, C], and one vector; GAT has two vectors [2, H, C].
    """
    result: Tensor = _Attend.apply(source, target, vectors, block, mask)  # type: ignore[no-untyped-call]
    return result


class _Attend(torch.autograd.Function):
    """Attention over features `h`; GATv2 has features of targets and one vector, GAT none and two
    vectors."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        targets: Tensor | None,
        vectors: Tensor,
        block: Block,
        mask: Mask | None,
    ) -> Tensor:
        h, vectors, sizes = h.contiguous(), vectors.contiguous(), attention_sizes(h)
        rows_in, heads, channels = h.shape
        if targets is None:
            # Numbers of each node as a source and as a target.
            of_source, of_target = h.new_empty(rows_in, heads), h.new_empty(block.rows_out, heads)
            # A program computes those of as many rows as others read edges.
            rows = sizes["EDGES"]
            launch(
                programs.gat_scores,
                (-(-rows_in // rows),),
                *(h, vectors[0], vectors[1], of_source, of_target, rows_in, block.rows_out),
                like=h,
                **{name: size for name, size in sizes.items() if name != "EDGES"},
                ROWS=rows,
            )
        else:
            of_source, of_target = h, targets.contiguous()
        out = h.new_empty(block.rows_out, heads, channels)
        softmax = h.new_empty(len(block.source), heads)
        ctx.block, ctx.is_gat = block, targets is None
        scale = 1.0 if mask is None else mask.scale
        ctx.constants = {"SLOPE": SLOPE, "SCALE": scale, "V2": targets is not None, **sizes}
        launch(
            programs.attention_forward,
            (block.rows_out,),
            *(h, of_source, of_target, vectors, block.indptr, block.source, block.edge),
            *(out, softmax, *mask_arguments(mask)),
            like=h,
            **ctx.constants,
        )
        ctx.save_for_backward(h, of_source, of_target, vectors, softmax)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        h, of_source, of_target, vectors, softmax = ctx.saved_tensors
        block: Block = ctx.block
        upstream = upstream.contiguous()
        d_score, d_target = torch.empty_like(softmax), torch.empty_like(of_target)
        d_vector = torch.empty_like(of_target)
        launch(
            programs.attention_backward_targets,
            (block.rows_out,),
            *(upstream, h, of_source, of_target, vectors, softmax, block.indptr, block.source),
            *(d_score, d_target, d_vector),
            like=h,
            **ctx.constants,
        )
        transpose = block.transpose
        d_source, d_h = torch.empty_like(of_source), torch.empty_like(h)
        launch(
            programs.attention_backward_sources,
            (len(h),),
            *(upstream, h, of_target, vectors, softmax, d_score, d_target),
            *(transpose.indptr, transpose.edge, transpose.target, d_source, d_h, block.rows_out),
            like=h,
            **ctx.constants,
        )
        if not ctx.is_gat:
            return d_h, d_target, d_vector.sum(0, keepdim=True), None, None
        own = h[: block.rows_out]
        d_vectors = (d_source[..., None] * h).sum(0), (d_target[..., None] * own).sum(0)
        return d_h, None, torch.stack(d_vectors), None, None

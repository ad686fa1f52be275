"""Attention over a block's edges: GAT and GATv2, which differ in the score of an edge.

An edge's coefficient is the softmax of its score over the edges of its target, then dropout; the
output is the coefficients' sum of the sources' features, heads side by side or averaged, plus a
bias. The score is

- in GAT leaky_relu(att_source . h_source + att_target . h_target) (Velickovic et al. 2018, eq. 3),
- in GATv2 att . leaky_relu(h_source + g_target) (Brody et al. 2022, equation 7).

In C++ on a CPU, where all heads of a channel lie side by side, else in Triton or torch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.dispatch import backend, call, filled, index_of, mask_argument, structures
from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.kernels.neighbor_weights import SLOPE
from gnnhpc.kernels.torch import torch_attention

KERNEL = "attention"
_LAYERS = structures(
    pointers="indptr source edge by_source order target "
    "features targets att_source att_target bias upstream "
    "out score_source score_target coefficient lanes pairs "
    "grad_features grad_target grad_attention",
    sizes="rows_in rows_out heads channels parts",
    reals="slope scale",
    flags="average finite",
)


@dataclass(frozen=True)
class Heads:
    """Heads of a layer [rows_in, count * channels] -> [rows_out, count * channels].

    With `average` the output is their mean, [rows_out, channels].
    """

    count: int
    channels: int
    average: bool = False

    @property
    def width(self) -> int:
        """Numbers of all heads of a row."""
        return self.count * self.channels

    @property
    def outputs(self) -> int:
        """Numbers of a row of the output."""
        return self.channels if self.average else self.width

    def ordered(self, parameter: Tensor) -> Tensor:
        """A weight or bias [count * channels, ...], rows in the order that `attend` takes
        products in: permuting a weight permutes its product."""
        if backend(KERNEL, parameter) != "c++":
            return parameter
        return parameter.view(self.count, -1, *parameter.shape[1:]).transpose(0, 1).flatten(0, 1)

    def joined(self, out: Tensor) -> Tensor:
        """[rows_out, count, channels] with its heads side by side, or averaged."""
        return out.mean(1) if self.average else out.flatten(1)


def attend(
    source: Tensor,
    target: Tensor | None,
    vectors: Tensor,
    bias: Tensor,
    block: Block,
    heads: Heads,
    mask: Mask | None,
) -> Tensor:
    """The attention of a product [rows_in, H * C], `ordered`.

    GATv2 has a second product `target`, of the same shape, and one vector [1, H, C]. GAT has none,
    and the vectors of sources and of targets, [2, H, C].
    """
    code = backend(KERNEL, bias)
    shape = (heads.channels, heads.count) if code == "c++" else (heads.count, heads.channels)
    source = source.view(-1, *shape)
    if target is not None:
        target = target[: block.rows_out].view(-1, *shape)
    if code == "c++":
        vectors = vectors.transpose(1, 2).contiguous()
        args = (source, target, vectors, bias, block, heads.average, mask)
        result: Tensor = _Attention.apply(*args)  # type: ignore[no-untyped-call]
        return result
    module: Any = torch_attention
    if code == "triton":
        from gnnhpc.kernels.triton import triton_attention as module
    return heads.joined(module.attend(source, target, vectors, block, mask)) + bias


class _Attention(torch.autograd.Function):
    """The compiled attention of features [rows_in, C, H]; `attention.h` has all shapes.

    GATv2 has `targets` [rows_out, C, H] and a vector [1, C, H], GAT two vectors [2, C, H].
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        targets: Tensor | None,
        vectors: Tensor,
        bias: Tensor,
        block: Block,
        average: bool,
        mask: Mask | None,
    ) -> Tensor:
        features, targets = features.contiguous(), None if targets is None else targets.contiguous()
        _, channels, heads = features.shape
        empty = features.new_empty
        out = empty(block.rows_out, channels if average else channels * heads)
        saved = {"coefficient": empty(len(block.edge), heads)}
        if targets is None:
            saved["score_source"] = empty(block.rows_in, heads)
            saved["score_target"] = empty(block.rows_out, heads)
        ctx.block, ctx.average, ctx.scale = block, average, mask.scale if mask else 1.0
        ctx.kind, ctx.names = "gat" if targets is None else "gatv2", tuple(saved)
        layer = _layer(
            ctx, features, targets, vectors, edge=block.edge, bias=bias, out=out, **saved
        )
        index = index_of(block.indptr, block.source, block.edge)
        args = (ctypes.byref(layer), mask_argument(mask))
        call(KERNEL, f"{ctx.kind}_forward", *args, dtype=features.dtype, index=index)
        ctx.finite = bool(layer.finite)
        ctx.save_for_backward(features, targets, vectors, *saved.values())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        features, targets, vectors, *saved = ctx.saved_tensors
        block: Block = ctx.block
        transpose, (_, channels, heads) = block.transpose, features.shape
        upstream, empty = upstream.contiguous(), features.new_empty
        of_features = torch.empty_like(features)
        of_targets = empty(block.rows_out, heads) if targets is None else torch.empty_like(targets)
        of_vectors = empty(torch.get_num_threads(), *vectors.shape)
        lanes, pairs = empty(block.rows_out, channels, heads), empty(len(block.edge), 2, heads)
        layer = _layer(
            ctx,
            features,
            targets,
            vectors,
            **dict(zip(ctx.names, saved, strict=True)),
            by_source=transpose.indptr,
            order=transpose.edge,
            target=transpose.target,
            upstream=upstream,
            lanes=lanes,
            pairs=pairs,
            grad_features=of_features,
            grad_target=of_targets,
            grad_attention=of_vectors,
            finite=ctx.finite,
        )
        index = index_of(block.source, transpose.indptr, transpose.edge, transpose.target)
        args = (f"{ctx.kind}_backward", ctypes.byref(layer))
        call(KERNEL, *args, dtype=features.dtype, index=index)
        of_given = None if targets is None else of_targets
        return of_features, of_given, of_vectors[0], upstream.sum(0), None, None, None


def _layer(
    ctx: Any, features: Tensor, targets: Tensor | None, vectors: Tensor, **more: Any
) -> ctypes.Structure:
    """The C++ side's `Layer`; the caller keeps all tensors."""
    block: Block = ctx.block
    rows_in, channels, heads = features.shape
    return filled(
        _LAYERS[features.dtype],
        indptr=block.indptr,
        source=block.source,
        features=features,
        targets=targets,
        att_source=vectors[0],
        att_target=vectors[-1],
        rows_in=rows_in,
        rows_out=block.rows_out,
        heads=heads,
        channels=channels,
        slope=SLOPE,
        scale=ctx.scale,
        average=ctx.average,
        **more,
    )

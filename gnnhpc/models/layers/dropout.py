"""Dropout of activations and of sparse features, with masks that are computed, not stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.graphs.node_features import IndexedRows, SparseRows
from gnnhpc.kernels import calls, dropped_product
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.kernels.mask import Mask, layer_mask, number_entries
from gnnhpc.models.context import Context


def active_mask(name: str, p: float, training: bool, context: Context) -> Mask | None:
    """The mask of layer `name` for this micro-batch; None in evaluation or where p is 0."""
    if not training or p == 0:
        return None
    return layer_mask(context.seed, context.step, name, p)


def masked_relu(x: Tensor, name: str, p: float, training: bool, context: Context) -> Tensor:
    """torch's ReLU, then dropout of layer `name` with probability `p`, of [rows, width].

    PyG's and DGL's layers use it between them, so that all implementations have equal masks.
    """
    mask = active_mask(name, p, training, context)
    active = functional.relu(x)
    return active if mask is None else drop(active, context.chunk.nodes[: len(x)], mask)


class Dropout(nn.Module):
    """Dropout of a graph's activations [rows, width], or of the stored values of sparse rows.

    The mask depends on the experiment's seed, the training step, `name`, and each node's number in
    the graph, and on nothing else: it is the same in every layout and chunk, and when a forward is
    recomputed. Custom models use it in place of `torch.nn.Dropout`; `name` is the layer's name.
    """

    def __init__(self, name: str, p: float, *, before_product: bool = False) -> None:
        """`before_product` says that it drops features of a fused layer that begins with `project`.

        Mask and product are then computed in one pass.
        """
        super().__init__()
        self.name = name
        self.p = p
        self.before_product = before_product

    def forward(
        self, x: Tensor | SparseRows | IndexedRows, context: Context
    ) -> Tensor | SparseRows | IndexedRows | DroppedRows:
        mask = active_mask(self.name, self.p, self.training, context)
        if mask is None:
            return x
        if isinstance(x, SparseRows):
            return x.with_values(drop(x.values[:, None], x.entries, mask)[:, 0])
        rows = context.chunk.nodes[: len(x)]
        features, at = (x.features, x.nodes) if isinstance(x, IndexedRows) else (x, None)
        if self.before_product and dropped_product.reads(features):
            return DroppedRows(features.contiguous(), rows, mask, at)
        return drop(x if isinstance(x, Tensor) else x.to_dense(), rows, mask)

    def extra_repr(self) -> str:
        return f"{self.name}, p={self.p}"


def drop(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [len(rows), width] with the entries of its global `rows` masked and scaled."""
    result: Tensor = _Drop.apply(x, rows, mask)  # type: ignore[no-untyped-call]
    return result


class _Drop(torch.autograd.Function):
    """Masks its input; backward computes the same mask for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.mask = mask
        return drop_rows(x, rows, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return drop_rows(upstream, rows, ctx.mask), None, None


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`drop`, in C++, Triton or torch, without a gradient."""
    if kernel.fits(x):
        return kernel.drop_rows(x, rows, mask)
    if gpu.fits(x):
        from gnnhpc.kernels.gpu import masks

        return masks.drop_rows(x, rows, mask)
    calls.count(calls.TORCH, "drop_rows")
    return x * mask.weights(number_entries(rows, x.shape[1]), x.dtype)

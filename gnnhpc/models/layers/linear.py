"""Products of features, dense or as they are stored, with a layer's weight.

Backward leaves out rows without a gradient. Where a product was not finite it takes all rows: a
gradient of 0 times NaN or infinity is NaN, as torch has it, and a run that diverges at nodes
without labels must show it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gnnhpc.graphs.node_features import IndexedRows, SparseRows, dense_if_asked
from gnnhpc.kernels import rowwise, sparse_features
from gnnhpc.kernels.dispatch import backend
from gnnhpc.kernels.sparse_features import DroppedRows
from gnnhpc.models.layers.split_backward import CutFrom, cut, now_or_later, splits_backward
from gnnhpc.models.model import Context

Features = Tensor | SparseRows | IndexedRows | DroppedRows

FEW_OUTPUTS = 32
"""Up to so many a product reads rows where they lie faster than torch multiplies a copy of them."""


class Linear(nn.Linear):
    """A linear layer of a model: [rows, inputs] -> [rows, outputs]."""

    def forward(self, x: Tensor, context: Context) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def project(x: Features, weight: Tensor) -> Tensor:
    """x [rows, F] times the transposed weight [D, F]."""
    product: Tensor
    x = dense_if_asked(x)
    if isinstance(x, IndexedRows):
        few = len(weight) <= FEW_OUTPUTS and sparse_features.reads_dense(x.features)
        x = DroppedRows(x.features, x.nodes, None, x.nodes) if few else x.to_dense()
    if isinstance(x, Tensor):
        return linear(x, weight)
    product = _FeaturesLinear.apply(x, *cut(weight.t()))  # type: ignore[no-untyped-call]
    return product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [rows, F] times the transposed weight [D, F], plus bias [D].

    Where few rows have a gradient, as those near few nodes with valid targets, backward computes
    with these rows alone, if a kernel finds them.
    """
    assert x.ndim == 2, f"rows of features, not {tuple(x.shape)}"
    if backend(rowwise.KERNEL, x) != "c++" and not splits_backward():
        return functional.linear(x, weight, bias)
    # Without autograd a Function sees parameters that need gradients, too.
    trains = torch.is_grad_enabled()
    product: Tensor = _Linear.apply(x, *cut(weight), bias, trains)  # type: ignore[no-untyped-call]
    return product


def features_linear(x: Tensor | SparseRows, layer: nn.Linear, *, fused: bool) -> Tensor:
    """A linear layer of features; without `fused`, plain torch computes with dense features."""
    if fused:
        return project(x, layer.weight) + layer.bias
    out: Tensor = layer(x.to_dense())
    return out


def glorot(parameter: Tensor) -> None:
    """Initialize as PyG does: uniform, Glorot & Bengio 2010, equation 16."""
    bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
    nn.init.uniform_(parameter, -bound, bound)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, cut_from: CutFrom, bias: Tensor | None, trains: bool
    ) -> Tensor:
        ctx.cut_from = cut_from
        ctx.save_for_backward(x, weight)
        product = functional.linear(x, weight, bias)
        backward = trains and any(ctx.needs_input_grad)
        ctx.finite = not backward or rowwise.all_finite(product)
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _, needs_bias, _ = ctx.needs_input_grad
        rows = rowwise.rows_with_gradient(upstream) if ctx.finite else None
        all_rows = x.shape
        if rows is not None:
            x, upstream = x[rows], upstream[rows]
        grad_x = upstream @ weight if needs_x else None
        if rows is not None and grad_x is not None:
            grad_x = grad_x.new_zeros(all_rows).index_copy_(0, rows, grad_x)
        grad_weight = None
        if needs_weight:
            grad_weight = now_or_later(ctx.cut_from, lambda: upstream.t() @ x)
        return grad_x, grad_weight, None, upstream.sum(0) if needs_bias else None, None


class _FeaturesLinear(torch.autograd.Function):
    """Stored features, or dense ones after dropout, times a weight [F, D], which has a gradient."""

    @staticmethod
    def forward(
        ctx: Any, rows: SparseRows | DroppedRows, weight: Tensor, cut_from: CutFrom
    ) -> Tensor:
        ctx.rows, ctx.cut_from = rows, cut_from
        product, ctx.finite = sparse_features.forward(rows, weight.contiguous())
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor | None, None]:
        rows, finite = ctx.rows, ctx.finite

        def gradient() -> Tensor:
            return sparse_features.backward(rows, upstream, finite=finite)

        return None, now_or_later(ctx.cut_from, gradient), None

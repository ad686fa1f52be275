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

from gnnhpc.graphs.node_features import IndexedRows, SparseRows
from gnnhpc.kernels import aggregate, dropped_product, sparse_torch
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels.dropped_rows import FEW_OUTPUTS, DroppedRows
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.models.context import Context
from gnnhpc.models.layers.split_backward import CutFrom, cut, now_or_later, splits_backward

Features = Tensor | SparseRows | IndexedRows | DroppedRows


class Linear(nn.Linear):
    """A linear layer of a model: [rows, inputs] -> [rows, outputs]."""

    def forward(self, x: Tensor, context: Context) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def project(x: Features, weight: Tensor) -> Tensor:
    """x [rows, F] times the transposed weight [D, F]."""
    product: Tensor
    if isinstance(x, IndexedRows):
        few = len(weight) <= FEW_OUTPUTS and dropped_product.reads(x.features)
        x = DroppedRows(x.features, x.nodes, None, x.nodes) if few else x.to_dense()
    if isinstance(x, Tensor):
        return linear(x, weight)
    if isinstance(x, DroppedRows):
        product = _DroppedLinear.apply(x, *cut(weight.t()))  # type: ignore[no-untyped-call]
        return product
    product = _SparseLinear.apply(x, *cut(weight.t()))  # type: ignore[no-untyped-call]
    return product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [rows, F] times the transposed weight [D, F], plus bias [D].

    Where few rows have a gradient, as those near few labelled nodes, backward computes with these
    rows alone, if a kernel finds them.
    """
    assert x.ndim == 2, f"rows of features, not {tuple(x.shape)}"
    if not (aggregate.fits(x) or splits_backward()):
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
        ctx.finite = aggregate.fits(x) and (not backward or aggregate.all_finite(product))
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _, needs_bias, _ = ctx.needs_input_grad
        rows = aggregate.rows_with_gradient(upstream) if ctx.finite else None
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


def _sparse_products(x: Tensor) -> Any:
    """The module whose `sparse_forward` and `sparse_backward` compute without the C++ kernel."""
    if gpu.fits(x):
        from gnnhpc.kernels.gpu import stored_products

        return stored_products
    return sparse_torch


class _SparseLinear(torch.autograd.Function):
    """Stored features times a weight [F, D]; only the weight has a gradient."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: Tensor, cut_from: CutFrom) -> Tensor:
        ctx.rows, ctx.cut_from = rows, cut_from
        weight = weight.contiguous()
        product: Tensor
        if kernel.fits(weight):
            product, ctx.finite = kernel.sparse_forward(rows, weight)
            return product
        product = _sparse_products(weight).sparse_forward(rows, weight)
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor | None, None]:
        rows: SparseRows = ctx.rows
        finite = kernel.fits(upstream) and ctx.finite

        def gradient() -> Tensor:
            if kernel.fits(upstream):
                return kernel.sparse_backward(rows, upstream, finite=finite)
            found: Tensor = _sparse_products(upstream).sparse_backward(rows, upstream)
            return found

        return None, now_or_later(ctx.cut_from, gradient), None


class _DroppedLinear(torch.autograd.Function):
    """Dropout of dense features times a weight [F, D]; only the weight has a gradient."""

    @staticmethod
    def forward(ctx: Any, dropped: DroppedRows, weight: Tensor, cut_from: CutFrom) -> Tensor:
        ctx.dropped, ctx.cut_from = dropped, cut_from
        product, ctx.finite = dropped_product.dropped_forward(dropped, weight.contiguous())
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor | None, None]:
        dropped, finite = ctx.dropped, ctx.finite

        def gradient() -> Tensor:
            return dropped_product.dropped_backward(dropped, upstream, finite=finite)

        return None, now_or_later(ctx.cut_from, gradient), None

"""Products of features, dense or as they are stored, with a layer's weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels import calls
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels.dropped_rows import DroppedRows


def project(x: Tensor | SparseRows | DroppedRows, weight: Tensor) -> Tensor:
    """x [rows, F] times the transposed weight [D, F]."""
    product: Tensor
    if isinstance(x, Tensor):
        return functional.linear(x, weight)
    if isinstance(x, DroppedRows):
        product = _DroppedLinear.apply(x, weight.t())  # type: ignore[no-untyped-call]
        return product
    product = _SparseLinear.apply(x, weight.t())  # type: ignore[no-untyped-call]
    return product


class _SparseLinear(torch.autograd.Function):
    """Stored features times a weight [F, D]; only the weight has a gradient."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: Tensor) -> Tensor:
        ctx.rows = rows
        weight = weight.contiguous()
        if kernel.fits(weight):
            return kernel.sparse_forward(rows, weight)
        calls.count(calls.TORCH, "sparse_forward")
        return rows.to_csr() @ weight

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        rows: SparseRows = ctx.rows
        if kernel.fits(upstream):
            return None, kernel.sparse_backward(rows, upstream)
        calls.count(calls.TORCH, "sparse_backward")
        return None, rows.to_csr().t() @ upstream


class _DroppedLinear(torch.autograd.Function):
    """Dropout of dense features times a weight [F, D]; only the weight has a gradient."""

    @staticmethod
    def forward(ctx: Any, dropped: DroppedRows, weight: Tensor) -> Tensor:
        ctx.dropped = dropped
        return kernel.dropped_forward(dropped.x, dropped.rows, dropped.mask, weight.contiguous())

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        dropped: DroppedRows = ctx.dropped
        return None, kernel.dropped_backward(dropped.x, dropped.rows, dropped.mask, upstream)

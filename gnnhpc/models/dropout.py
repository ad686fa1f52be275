"""Dropout of activations and of sparse features, by masks that are computed and never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels.mask import Mask, active_mask, number_entries
from gnnhpc.models.context import Context

if TYPE_CHECKING:
    from gnnhpc.graphs.chunks import GraphChunk


def graph_of(context: Context) -> GraphChunk:
    """The chunk a graph layer works on; a context without one is a caller's mistake."""
    if context.graph is None:
        raise ValueError("graph layers need a context with a graph chunk")
    return context.graph


class Dropout(nn.Module):
    """Dropout of the activation that enters attention layer `attention`.

    The first reads the chunk's features and ignores its input; sparse ones leave it as
    SparseRows.
    """

    def __init__(self, name: str, attention: int, p: float) -> None:
        super().__init__()
        self.name = name
        self.attention = attention
        self.p = p

    def forward(self, x: Tensor, context: Context) -> Tensor | SparseRows:
        chunk = graph_of(context)
        mask = active_mask(self.name, self.p, self.training, context)
        if self.attention == 0:
            x = chunk.features
            if x.layout == torch.sparse_csr:
                values = x.values()
                if mask is not None and chunk.entries is not None:
                    values = drop(values[:, None], chunk.entries, mask)[:, 0]
                return SparseRows(x.crow_indices(), x.col_indices(), values, x.shape[1])
        if mask is None:
            return x
        return drop(x, chunk.nodes[: chunk.rows[self.attention]], mask)

    def extra_repr(self) -> str:
        return f"{self.name}, p={self.p}"


def drop(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [len(rows), width] with the entries of its global `rows` masked and scaled."""
    result: Tensor = _Drop.apply(x, rows, mask)  # type: ignore[no-untyped-call]
    return result


class _Drop(torch.autograd.Function):
    """Masks its input; the gradient goes through the same mask, computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.mask = mask
        return _masked(x, rows, mask)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return _masked(upstream, rows, ctx.mask), None, None


def _masked(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    if kernel.fits(x):
        return kernel.drop_rows(x, rows, mask)
    return x * mask.weights(number_entries(rows, x.shape[1]), x.dtype)

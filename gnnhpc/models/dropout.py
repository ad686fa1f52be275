"""Dropout whose mask follows from (seed, training step, layer name) and an entry's global number.

Every layout, chunking, replica and implementation so draws the same mask for the same node or
edge, and nothing is stored: a mask is computed where it is applied, forward and backward.

Entries are numbered in the full graph: node * width + column for activations, the place in the
CSR store for sparse features (zeros need no draw), edge * heads + head for attention. An entry
is dropped when a 32-bit hash of its number and the key lies below p * 2**32. The hash is two
multiply-xorshift rounds (C. Wellons, "Hash function prospector", 2018) with half of the key
added before each.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gnnhpc.kernels import gat as kernel
from gnnhpc.models.context import Context

if TYPE_CHECKING:
    from gnnhpc.data.chunks import GraphChunk

_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Mask:
    """The mask of one layer at one step: entry i stays if hash(i) >= threshold.

    Kept entries are multiplied by `scale`, 1 / (1 - p).
    """

    first: int
    second: int
    threshold: int
    scale: float

    def keeps(self, entries: Tensor) -> Tensor:
        """Bool, of the shape of `entries` (int64, global numbers)."""
        # Both factors are below 2**31, so that no product of 32-bit numbers leaves int64.
        x = entries + self.first
        x &= _BITS
        x ^= x >> 16
        x *= 0x21F0AAAD
        x &= _BITS
        x ^= x >> 15
        x += self.second
        x &= _BITS
        x *= 0x735A2D97
        x &= _BITS
        x ^= x >> 15
        return x >= self.threshold

    def weights(self, entries: Tensor, dtype: torch.dtype) -> Tensor:
        """What to multiply each entry by: 0 or `scale`."""
        return self.keeps(entries).to(dtype).mul_(self.scale)


@functools.lru_cache(maxsize=64)
def layer_mask(seed: int, step: int, name: str, p: float) -> Mask:
    """The mask of layer `name` at training step `step`; `p` is the share dropped, in [0, 1)."""
    digest = hashlib.sha256(f"{seed}/{step}/{name}".encode()).digest()
    first, second = (int.from_bytes(part, "big") for part in (digest[:4], digest[4:8]))
    return Mask(first, second, round(p * 2**32), 1.0 / (1.0 - p))


def active_mask(name: str, p: float, training: bool, context: Context) -> Mask | None:
    """The mask of layer `name` for this micro-batch; none in evaluation or where p is 0."""
    if not training or p == 0:
        return None
    return layer_mask(context.seed, context.step, name, p)


def graph_of(context: Context) -> GraphChunk:
    """The chunk a graph layer works on; a context without one is a caller's mistake."""
    if context.graph is None:
        raise ValueError("graph layers need a context with a graph chunk")
    return context.graph


def number_entries(rows: Tensor, width: int) -> Tensor:
    """Global numbers [len(rows), width] of the entries of `rows` (global ids, int64)."""
    return rows[:, None] * width + torch.arange(width, device=rows.device)


@dataclass(frozen=True)
class SparseRows:
    """Features that pass from dropout to attention as they are stored: CSR, [rows, width].

    A stored value may be zero: what dropout took stays in its place. Needs no gradient.
    """

    indptr: Tensor
    columns: Tensor
    values: Tensor
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.width

    def to_csr(self) -> Tensor:
        return torch.sparse_csr_tensor(
            self.indptr, self.columns, self.values, self.shape, check_invariants=False
        )

    def to_dense(self) -> Tensor:
        return self.to_csr().to_dense()


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

"""Dropout masks, computed from seed, training step, layer name and an entry's global number.

So every layout, chunking, replica and implementation has the same mask for the same node or edge,
and nothing is stored: a mask is computed where it is applied, forward and backward.

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

import torch
from torch import Tensor

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
        assert entries.dtype == torch.int64
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
    # The kernel compares 32 bits, in which 2**32 would be 0 and drop nothing.
    return Mask(first, second, min(round(p * 2**32), 2**32 - 1), 1.0 / (1.0 - p))


def number_entries(rows: Tensor, width: int) -> Tensor:
    """Global numbers int64 [len(rows), width] of the entries of `rows`, global ids."""
    return rows.long()[:, None] * width + torch.arange(width, device=rows.device)

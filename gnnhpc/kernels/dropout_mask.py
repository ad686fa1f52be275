"""Dropout masks, computed from seed, training step, layer name and an entry's global number.

So every layout, chunking, replica and implementation has the same mask for the same node or edge,
and nothing is stored: a mask is computed where it is applied, forward and backward.

Entries are numbered in the full graph: node * width + column for activations, the place in the
CSR store for sparse features (zeros need no draw), edge * heads + head for attention. An entry
is dropped when a 32-bit hash of its number and the key lies below p * 2**32. The hash is two
multiply-xorshift rounds (C. Wellons, "Hash function prospector", 2018) with half of the key
added before each.

A step that is captured and replayed cannot have its key among its numbers: `MaskKeys` keeps the
keys in the device's memory, where each replay reads those of its own step.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Mask:
    """The mask of one layer at one step: entry i stays if hash(i) >= threshold.

    Kept entries are multiplied by `scale`, 1 / (1 - p).
    """

    first: int | Tensor
    """Half of the key; a tensor where `MaskKeys` keeps it, int32 with the same bits."""
    second: int | Tensor
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
    return _mask(*_key(seed, step, name), p)


def _mask(first: int | Tensor, second: int | Tensor, p: float) -> Mask:
    # The kernel compares 32 bits, in which 2**32 would be 0 and drop nothing.
    return Mask(first, second, min(round(p * 2**32), 2**32 - 1), 1.0 / (1.0 - p))


def _key(seed: int, step: int, name: str) -> tuple[int, int]:
    digest = hashlib.sha256(f"{seed}/{step}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")


class Masks(Protocol):
    """Gives masks in place of `layer_mask`."""

    def mask(self, seed: int, name: str, p: float) -> Mask | None:
        """The mask of layer `name`; None where nothing is dropped."""
        ...


class MaskKeys:
    """The keys of one step's masks in the memory of a device.

    Kernels read them there, also those of a CUDA graph: each replay takes the keys of the step that
    was brought last. The device has to be done with a step before the next begins, as a step has
    two buffers on the host: for its own keys and, while the device computes, for the next one's.
    """

    MOST = 1024
    """Layers with dropout that a model may have."""

    def __init__(self, device: torch.device) -> None:
        on_host = torch.zeros(2, self.MOST, 2, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._buffers = itertools.cycle([(each, each.numpy()) for each in on_host])
        self._on_device = torch.zeros(self.MOST, 2, dtype=torch.int32, device=device)
        self._masks: dict[tuple[int, str, float], Mask] = {}
        """(seed, layer, share dropped) -> its mask, whose key is in the row of this order."""
        self._step = -1

    def bring(self, step: int) -> None:
        """Masks are those of this training step from here on, in the order of the device's stream;
        nothing is copied where they are already."""
        if step != self._step:
            self._step = step
            self._upload(wait=False)

    def mask(self, seed: int, name: str, p: float) -> Mask:
        """As `layer_mask` of the step that was brought."""
        found = self._masks.get((seed, name, p))
        if found is None:
            first, second = self._on_device[len(self._masks)].unbind()
            found = self._masks[seed, name, p] = _mask(first, second, p)
            self._upload(wait=True)
        return found

    def _upload(self, *, wait: bool) -> None:
        if self._masks:
            keys = [_key(seed, self._step, name) for seed, name, _ in self._masks]
            on_host, numbers = next(self._buffers)
            numbers[: len(keys)] = np.array(keys, np.uint32).view(np.int32)
            self._on_device.copy_(on_host, non_blocking=not wait)


def number_entries(rows: Tensor, width: int) -> Tensor:
    """Global numbers int64 [len(rows), width] of the entries of `rows`, global ids."""
    return rows.long()[:, None] * width + torch.arange(width, device=rows.device)

"""Dropout masks from their definition: a 32-bit hash of an entry's number below p * 2**32 drops.

The hash is two multiply-xorshift rounds (C. Wellons, "Hash function prospector", 2018), keyed by
SHA-256 of "seed/step/layer". An entry's number is node * width + column, the place among a graph's
stored features, or edge * heads + head.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def dropout_weights(seed: int, step: int, layer: str, p: float, numbers: Tensor) -> Tensor:
    """What each entry is multiplied by, 0 or 1 / (1 - p); float64, of the shape of `numbers`."""
    key = hashlib.sha256(f"{seed}/{step}/{layer}".encode()).digest()
    first, second = (np.uint32(int.from_bytes(part, "big")) for part in (key[:4], key[4:8]))
    mixed = numbers.numpy().astype(np.uint32) + first
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    mixed = (mixed ^ (mixed >> np.uint32(15))) + second
    mixed = mixed * np.uint32(0x735A2D97)
    mixed ^= mixed >> np.uint32(15)
    kept = mixed >= np.uint32(min(round(p * 2**32), 2**32 - 1))
    return torch.from_numpy(kept.astype(np.float64) / (1.0 - p))

"""Dropout's masks, worked out again from their documented rule in plain integers.

The first eight bytes of the SHA-256 of "<seed>/<step>/<layer>" are two 32-bit numbers. Each is
added to an entry's number before a round of multiplying and shifting; what then lies below
p * 2**32 is dropped, what is kept is divided by 1 - p.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_MODULUS = np.uint64(2**32)


def plain_weights(
    seed: int, step: int, layer: str, p: float, entries: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """What each entry [n] is multiplied by: 0, or 1 / (1 - p)."""
    digest = hashlib.sha256(f"{seed}/{step}/{layer}".encode()).hexdigest()
    first, second = np.uint64(int(digest[:8], 16)), np.uint64(int(digest[8:16], 16))
    number = (entries.astype(np.uint64) + first) % _MODULUS
    number = (number ^ (number >> np.uint64(16))) * np.uint64(0x21F0AAAD) % _MODULUS
    number = (number ^ (number >> np.uint64(15))) + second
    number = number % _MODULUS * np.uint64(0x735A2D97) % _MODULUS
    number ^= number >> np.uint64(15)
    lowest_kept = min(round(p * 2**32), 2**32 - 1)
    return np.where(number >= np.uint64(lowest_kept), 1.0 / (1.0 - p), 0.0)

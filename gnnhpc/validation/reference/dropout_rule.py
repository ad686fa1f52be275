"""Dropout masks by their documented rule, which the reference computes with.

The layers of the reference are the run's own in plain torch; their masks come from here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnhpc.kernels.dropout_mask import Mask

_HALF = np.uint64(2**32)
_FIRST, _SECOND = np.uint64(0x21F0AAAD), np.uint64(0x735A2D97)


class MaskByRule(Mask):
    """A mask whose entries are hashed by numpy.

    Each half of the key is added to an entry's number before a round of multiplying and shifting;
    an entry whose result is below p * 2**32 is dropped.
    """

    def keeps(self, entries: Tensor) -> Tensor:
        first, second = np.uint64(int(self.first)), np.uint64(int(self.second))
        number = (entries.numpy().astype(np.uint64) + first) % _HALF
        number = (number ^ (number >> np.uint64(16))) * _FIRST % _HALF
        number = (number ^ (number >> np.uint64(15))) + second
        number = number % _HALF * _SECOND % _HALF
        number ^= number >> np.uint64(15)
        return torch.from_numpy(number >= np.uint64(self.threshold))


@dataclass(frozen=True)
class MasksByRule:
    """The masks of one step; an evaluation has none."""

    step: int
    training: bool

    def mask(self, seed: int, name: str, p: float) -> Mask | None:
        """The mask of layer `name`, which drops the share `p`.

        Its key is the first two 32-bit numbers of the SHA-256 of "<seed>/<step>/<name>".
        """
        if not self.training or not p:
            return None
        digest = hashlib.sha256(f"{seed}/{self.step}/{name}".encode()).hexdigest()
        least = min(round(p * 2**32), 2**32 - 1)
        return MaskByRule(int(digest[:8], 16), int(digest[8:16], 16), least, 1.0 / (1.0 - p))

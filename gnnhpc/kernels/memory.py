"""Where the tensors lie that a kernel fills."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Memory(Protocol):
    """Gives room for one tensor after the other."""

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count], on the CPU, of whatever numbers stand there."""
        ...


class FreshMemory:
    """Each tensor has memory of its own, from torch."""

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype)


FRESH = FreshMemory()

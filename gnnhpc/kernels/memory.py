"""Where the tensors lie that a kernel fills."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Memory(Protocol):
    """Gives room for one tensor after the other."""

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count], of whatever numbers stand there; on the CPU, but for a kernel of a device."""
        ...


class FreshMemory:
    """Each tensor has memory of its own, from torch."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, device=self._device)


FRESH = FreshMemory()

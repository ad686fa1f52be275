"""The bytes of a tensor's numbers, of any type that torch has."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """uint8, on the CPU, in the order of its elements, also of a view that is conjugate or
    negative."""
    values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # A single element may keep any stride, which a view of bytes does not take.
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)


def checksum(tensor: Tensor) -> int:
    """CRC-32 of these bytes."""
    return zlib.crc32(bytes_of(tensor).numpy().data)

"""How much single or double precision may lose where torch adds up many numbers."""

from __future__ import annotations

import torch
from torch import Tensor

GPU_THREADS = 32
"""With which torch adds up the losses of all rows (ATen, `NLL_LOSS_THREADS`)."""


def most_added(rows: int, *, on_gpu: bool) -> int:
    """In how many additions one after another a number of `rows` takes part, at the most.

    On a CPU torch adds on 4 or 8 levels (ATen, `cascade_sum`), each of 16 numbers, or of the 4th
    root of all where these are more; on a GPU each thread adds its own, and these are added then.
    """
    if on_gpu:
        return min(rows, rows // GPU_THREADS + GPU_THREADS + 1)
    return min(rows, 128 + 8 * int(rows**0.25))


def sum_rounding(of: Tensor, rows: int, size: float) -> float:
    """What the sum of `rows` numbers as precise as `of` may be off by; `size` that of all."""
    return unit(of) * most_added(rows, on_gpu=of.device.type != "cpu") * size


def unit(of: Tensor) -> float:
    """Twice what one rounding may change, relatively."""
    return float(torch.finfo(of.dtype).eps)

"""The most memory a GPU has held since a step began."""

from __future__ import annotations

import torch


def reset_peak(device: torch.device) -> None:
    """Begin to count anew; without it a step would report the largest step before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float | None:
    """MiB of tensors at most since the last reset; None on a CPU."""
    if device.type != "cuda":
        return None
    return float(torch.cuda.max_memory_allocated(device)) / 2**20

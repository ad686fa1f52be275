"""The most memory a process's GPUs have held since a step began."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def reset_peak(devices: Sequence[torch.device]) -> None:
    """Begin to count anew; without it a step would report the largest step before it."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def peak_mib(devices: Sequence[torch.device]) -> float | None:
    """MiB of tensors at most since the last reset, on the GPU that held most; None on a CPU."""
    gpus = [device for device in devices if device.type == "cuda"]
    return max((torch.cuda.max_memory_allocated(gpu) / 2**20 for gpu in gpus), default=None)

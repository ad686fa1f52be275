"""What a record keeps of a rank's GPU: which it is, its driver, CUDA's and NCCL's versions."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnnhpc.distributed.devices import CONNECTIONS_VARIABLE, gpu_names
from gnnhpc.distributed.mesh import Mesh

DRIVER = Path("/proc/driver/nvidia/version")


def device_facts(mesh: Mesh) -> dict[str, Any] | None:
    """Facts that a GPU's times depend on, of the first of several; None on a CPU. What cannot be
    found out is None.
    """
    device = mesh.device
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "identity": gpu_names(mesh.devices),
        "capability": f"{properties.major}.{properties.minor}",
        "memory_mib": properties.total_memory // 2**20,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "nccl": nccl_version(),
        "transfers": mesh.transfers,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "connections": os.environ.get(CONNECTIONS_VARIABLE),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def driver_version() -> str | None:
    """The NVIDIA driver's, as its kernel module says it."""
    try:
        first = DRIVER.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", first)
    return found.group() if found else None


def nccl_version() -> str | None:
    """Of the library that is loaded."""
    if not dist.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())

"""Which GPU a rank computes on, whether another rank shares it, and what records keep of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from gnnhpc.core.errors import InputError
from gnnhpc.distributed.environment import Environment, switch
from gnnhpc.distributed.mesh import Mesh

DRIVER = Path("/proc/driver/nvidia/version")
SHARE_VARIABLE = "GNNHPC_SHARE_GPU"


@dataclass(frozen=True)
class RankDevice:
    """What the other ranks must know of one rank's device before they connect."""

    host: str
    gpu: str | None
    """The same for two ranks only if they share a GPU; None on a CPU. Of several GPUs their names
    with a + between them."""
    nccl: bool
    """Whether this torch has NCCL."""


def choose_devices(
    kind: Literal["cpu", "gpu"], environment: Environment, stages: int
) -> list[torch.device]:
    """The local rank's GPUs of those that it is shown, one for each stage that it holds; or all
    that it is shown, if that is as many.

    Stages share a CPU, and knowingly a GPU. Two ranks may choose the same; `nccl_connects` finds
    them. Raises InputError where there is no GPU or fewer than stages.
    """
    if kind == "cpu":
        return [torch.device("cpu")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        found = f"no GPU that torch {torch.__version__} can use on {environment.host}"
        raise _refused(found, "a GPU for each rank of a node, or device: cpu")
    if count < stages:
        if not switch(SHARE_VARIABLE):
            raise _refused(
                f"{count} GPU{'s' if count > 1 else ''} on {environment.host} for the {stages} "
                "stages that one process holds",
                f"at least {stages}, device: cpu, or {SHARE_VARIABLE}=1 to share them knowingly",
            )
        return [torch.device("cuda", environment.local_rank % count)]
    first = environment.local_rank * stages % (count - count % stages)
    return [torch.device("cuda", first + stage) for stage in range(stages)]


def _refused(found: str, allowed: str) -> InputError:
    return InputError("environment", "device", found, allowed)


def gpu_identity(device: torch.device) -> str | None:
    """Names a rank's GPU, or its slice of one, the same in every process; None for a CPU."""
    if device.type != "cuda":
        return None
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if shown.startswith("MIG-"):
        # CUDA shows a process one slice at most, and may give the whole GPU's number for it.
        return shown.partition(",")[0]
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def rank_device(environment: Environment, devices: Sequence[torch.device]) -> RankDevice:
    names = [name for name in map(gpu_identity, devices) if name is not None]
    return RankDevice(environment.host, "+".join(names) or None, dist.is_nccl_available())


def nccl_connects(ranks: Sequence[RankDevice]) -> bool:
    """Whether the ranks' GPUs can talk by NCCL, which refuses two ranks of one GPU, and
    supports slices of one (MIG) only from 2.32 on.

    Raises InputError if ranks share a GPU and nobody has asked for it.
    """
    sharers: dict[str, list[int]] = {}
    for rank, each in enumerate(ranks):
        for gpu in each.gpu.split("+") if each.gpu is not None else ():
            sharers.setdefault(gpu, []).append(rank)
    asked = switch(SHARE_VARIABLE)
    for gpu, shared in sharers.items():
        if len(shared) > 1:
            if asked:
                return False
            raise _refused(
                f"ranks {', '.join(map(str, shared))} on {ranks[shared[0]].host} with one GPU, "
                f"{gpu}",
                f"a GPU for each rank of a node, device: cpu, or {SHARE_VARIABLE}=1 to share it "
                "knowingly",
            )
    return all(each.gpu and "MIG-" not in each.gpu and each.nccl for each in ranks)


def device_facts(mesh: Mesh) -> dict[str, Any] | None:
    """Facts that a GPU's times depend on, of the first of several; None on a CPU. What cannot be
    found out is None.
    """
    if mesh.device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(mesh.device)
    nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else ()
    return {
        "name": properties.name,
        "identity": mesh.gpu,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_mib": properties.total_memory // 2**20,
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) or None,
        "transfers": mesh.transfers,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def _driver_version() -> str | None:
    """The NVIDIA driver's, as its kernel module says it."""
    try:
        first = DRIVER.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", first)
    return found.group() if found else None

"""What one rank computes with: what decides whether its numbers may be compared with others'."""

from __future__ import annotations

import os
from typing import Any

import torch

from gnnhpc.core.provenance import cpu_model
from gnnhpc.distributed.device_facts import device_facts
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.shared_memory import VARIABLE as SHARED_MEMORY_VARIABLE
from gnnhpc.engines import Engine
from gnnhpc.engines.native import NativeEngine
from gnnhpc.kernels.build import kernel_statuses
from gnnhpc.kernels.gpu import here as gpu
from gnnhpc.training.setup import TrainingParts

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables by which a library chooses other instructions, and so rounds otherwise."""
_RECORDED = (*VARIABLES, SHARED_MEMORY_VARIABLE)
"""And the one by which tensors travel otherwise, on a node where they need not."""


def rank_facts(environment: Environment, mesh: Mesh, parts: TrainingParts) -> dict[str, Any]:
    """Host, CPU, threads, device, transfers and kernels of this rank; to be asked for after the
    set-up."""
    return {
        "host": environment.host,
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": str(mesh.device),
        "device_facts": device_facts(mesh),
        "transfers": transfers_between_stages(mesh, parts.engine),
        "implementation": parts.implementation,
        "kernels": kernel_statuses() | gpu.status(),
        "variables": {name: os.environ[name] for name in _RECORDED if name in os.environ},
    }


def transfers_between_stages(mesh: Mesh, engine: Engine) -> str | None:
    """How tensors of this rank's stage come and go, in words; None without other stages."""
    if isinstance(engine, NativeEngine):
        return engine.transfers
    return mesh.transfers if mesh.layout.stages > 1 else None

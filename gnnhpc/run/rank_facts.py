"""What one rank computes with: what decides whether its numbers may be compared with others'."""

from __future__ import annotations

import os
from typing import Any

import torch

from gnnhpc.kernels.build import kernel_statuses
from gnnhpc.ranks.device_facts import device_facts
from gnnhpc.ranks.environment import Environment
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.provenance import cpu_model
from gnnhpc.train.setup import TrainingParts

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables by which a library chooses other instructions, and so rounds otherwise."""


def rank_facts(environment: Environment, mesh: Mesh, parts: TrainingParts) -> dict[str, Any]:
    """Host, CPU, threads, device and kernels of this rank; to be asked for after the set-up."""
    return {
        "host": environment.host,
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": str(mesh.device),
        "device_facts": device_facts(mesh),
        "implementation": parts.implementation,
        "kernels": kernel_statuses(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }

"""What one rank runs and computes with, as other ranks compare it and its records say it.

It decides whether numbers of two runs may be compared. All ranks of a cell must run the same code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.provenance import code_digest, cpu_model, versions
from gnnhpc.distributed.channels import VARIABLE as SHARED_MEMORY_VARIABLE
from gnnhpc.distributed.cpus import openmp_variables, process_cpus
from gnnhpc.distributed.devices import device_facts
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.native import NativeEngine
from gnnhpc.kernels.compile import kernel_statuses
from gnnhpc.kernels.triton import launch
from gnnhpc.records.schema import Header
from gnnhpc.training.setup import TrainingParts
from gnnhpc.worker.attempt import Attempt

VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    *("DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA"),
    SHARED_MEMORY_VARIABLE,
)
"""Recorded environment variables: by most of them a library chooses other instructions, and so
rounds otherwise, and the last one chooses the transport of tensors."""


def rank_metadata(host: str, mesh: Mesh, parts: TrainingParts) -> dict[str, Any]:
    """Host, CPU, threads, device, transfers and kernels of this rank; to be asked for after the
    set-up."""
    engine = parts.engine
    between_stages = mesh.transfers if mesh.layout.stages > 1 else None
    return {
        "host": host,
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": len(process_cpus()),
        "threads": torch.get_num_threads(),
        "device": str(mesh.device),
        "device_facts": device_facts(mesh),
        "transfers": engine.transfers if isinstance(engine, NativeEngine) else between_stages,
        "implementation": parts.implementation,
        "kernels": kernel_statuses() | launch.status(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ}
        | openmp_variables(),
    }


def rank_header(attempt: Attempt, mesh: Mesh, parts: TrainingParts) -> Header:
    """The first line of the rank's records."""
    metadata: dict[str, Any] = attempt.ranks[mesh.rank]
    site = attempt.environment.site
    return Header(
        cell=attempt.cell.id,
        attempt=attempt.known_paths.number,
        rank=mesh.rank,
        replica=mesh.replica,
        stage=mesh.stage,
        world_size=mesh.layout.world_size,
        pid=os.getpid(),
        layers=[layer.name for layer in parts.stage.specs],
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        started_at=attempt.started_at,
        slurm=dict(attempt.environment.slurm),
        versions=versions(),
        startup_s={name: round(s, 3) for name, s in attempt.startup_s.items()},
        code=code_digest(),
        code_from=attempt.code.kind,
        site=None if site is None else dict(site),
        **metadata,
    )


def check_ranks_run_the_same(ranks: Sequence[Mapping[str, Any]]) -> None:
    """Raises GnnhpcError if a rank has other code, package versions or another cell than rank 0."""
    first = ranks[0]
    for rank, each in enumerate(ranks):
        for what in ("code", "versions", "cell"):
            if each[what] != first[what]:
                raise GnnhpcError(
                    f"rank {rank} on {each['host']} runs other {what} ({each[what]}) than rank 0 "
                    f"on {first['host']} ({first[what]})"
                )

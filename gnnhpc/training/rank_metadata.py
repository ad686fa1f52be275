"""What one rank computes with, and the header of its records, which says so.

It decides whether numbers of two runs may be compared. All ranks of a cell must run the same code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.provenance import code_digest, cpu_model, versions
from gnnhpc.distributed.cpus import openmp_variables, process_cpus
from gnnhpc.distributed.devices import device_facts
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.peer_memory import VARIABLE as SHARED_MEMORY_VARIABLE
from gnnhpc.engines import Engine
from gnnhpc.engines.native import NativeEngine
from gnnhpc.kernels.compile import kernel_statuses
from gnnhpc.kernels.triton import launch
from gnnhpc.records.schema import Header
from gnnhpc.training.attempt import Attempt
from gnnhpc.training.setup import TrainingParts

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables by which a library chooses other instructions, and so rounds otherwise."""
_RECORDED = (*VARIABLES, SHARED_MEMORY_VARIABLE)
"""Variables that a rank records: those and the one that chooses the transport of tensors."""


def rank_metadata(environment: Environment, mesh: Mesh, parts: TrainingParts) -> dict[str, Any]:
    """Host, CPU, threads, device, transfers and kernels of this rank; to be asked for after the
    set-up."""
    return {
        "host": environment.host,
        "cpu_model": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": len(process_cpus()),
        "threads": torch.get_num_threads(),
        "device": str(mesh.device),
        "device_facts": device_facts(mesh),
        "transfers": transfers_between_stages(mesh, parts.engine),
        "implementation": parts.implementation,
        "kernels": kernel_statuses() | launch.status(),
        "variables": {name: os.environ[name] for name in _RECORDED if name in os.environ}
        | openmp_variables(),
    }


def transfers_between_stages(mesh: Mesh, engine: Engine) -> str | None:
    """How tensors of this rank's stage come and go, in words; None without other stages."""
    if isinstance(engine, NativeEngine):
        return engine.transfers
    return mesh.transfers if mesh.layout.stages > 1 else None


def rank_header(attempt: Attempt, mesh: Mesh, parts: TrainingParts) -> Header:
    metadata: dict[str, Any] = attempt.ranks[mesh.rank]
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
        site=None if attempt.environment.site is None else dict(attempt.environment.site),
        **metadata,
    )


@dataclass(frozen=True)
class RankCode:
    """What one rank runs, and what rank 0 has claimed."""

    attempt: int | None
    """The attempt's number; None on other ranks than 0."""
    ended: int | None
    """The exit status with which all ranks end at once, if they do."""
    code: str
    versions: Mapping[str, str]
    cell: str
    host: str


def check_ranks_run_the_same(ranks: Sequence[RankCode]) -> None:
    """Raises GnnhpcError if a rank has other code, package versions or another cell than rank 0."""
    first = ranks[0]
    for rank, each in enumerate(ranks):
        for what in ("code", "versions", "cell"):
            here, there = getattr(each, what), getattr(first, what)
            if here != there:
                raise GnnhpcError(
                    f"rank {rank} on {each.host} runs other {what} ({here}) than rank 0 on "
                    f"{first.host} ({there})"
                )

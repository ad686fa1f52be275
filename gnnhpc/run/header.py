"""The header of one stage's records: whose they are and what it runs on."""

from __future__ import annotations

import os

import torch

from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.provenance import cpu_model, versions
from gnnhpc.records.schema import Header
from gnnhpc.run.attempt import Attempt
from gnnhpc.train.setup import TrainingParts


def rank_header(attempt: Attempt, mesh: Mesh, parts: TrainingParts) -> Header:
    return Header(
        cell=attempt.cell.id,
        attempt=attempt.known_paths.number,
        rank=mesh.place,
        process=mesh.rank,
        replica=mesh.replica,
        stage=mesh.stage,
        world_size=mesh.layout.world_size,
        host=attempt.environment.host,
        pid=os.getpid(),
        cpu_model=cpu_model(),
        cpus=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        device=str(mesh.device),
        layers=[layer.name for layer in parts.stage.outlines],
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        started_at=attempt.started_at,
        slurm=dict(attempt.environment.slurm),
        versions=versions(),
        startup_s={name: round(s, 3) for name, s in attempt.startup_s.items()},
    )

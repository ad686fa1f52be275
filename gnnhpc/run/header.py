"""The header of one stage's records: whose they are and what it runs on."""

from __future__ import annotations

import os
from typing import Any

from gnnhpc.core.provenance import code_digest, versions
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.records.schema import Header
from gnnhpc.run.attempt import Attempt
from gnnhpc.training.setup import TrainingParts


def rank_header(attempt: Attempt, mesh: Mesh, parts: TrainingParts) -> Header:
    facts: dict[str, Any] = attempt.ranks[mesh.rank]
    return Header(
        cell=attempt.cell.id,
        attempt=attempt.known_paths.number,
        rank=mesh.rank,
        process=mesh.rank,
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
        **facts,
    )

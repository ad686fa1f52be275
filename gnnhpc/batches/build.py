"""From an experiment and a process's place to the batches it works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gnnhpc.batches.batch import Batches
from gnnhpc.core.outline import Outlines
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.spec.experiment import Experiment


@dataclass(frozen=True)
class BatchPlan:
    """What every source of batches is made from."""

    experiment: Experiment
    outlines: Outlines
    mesh: Mesh
    root: Path | None
    """The data root."""

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.experiment.dtype)
        return found


def build_batches(plan: BatchPlan) -> Batches:
    """Load this rank's data; raises InputError for what is missing or damaged."""
    if plan.experiment.data.facts().kind == "images":
        from gnnhpc.batches.images import ImageBatches

        return ImageBatches(plan)
    from gnnhpc.batches.chunks import ChunkBatches

    return ChunkBatches(plan)

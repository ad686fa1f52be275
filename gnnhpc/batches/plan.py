"""What every source of batches is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gnnhpc.core.outline import Outlines
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.spec.experiment import Experiment


@dataclass(frozen=True)
class BatchPlan:
    """An experiment, its layers on paper, and this process's place."""

    experiment: Experiment
    outlines: Outlines
    mesh: Mesh
    root: Path | None
    """The data root."""

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.experiment.dtype)
        return found

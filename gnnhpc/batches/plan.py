"""What every source of batches is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment


@dataclass(frozen=True)
class BatchPlan:
    """An experiment, its layers on paper, and this process's place among the ranks."""

    experiment: Experiment
    outlines: LayerSpecs
    mesh: Mesh
    root: Path | None
    """The data root."""

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.experiment.dtype)
        return found

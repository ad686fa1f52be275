"""One stage's gradients in one flat buffer: averaged over replicas by one all-reduce a step.

DistributedDataParallel would do the same in one bucket, but imports torch's compiler at every
start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.engines.base import parameters_of
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.ranks.mesh import Mesh


class Gradients:
    """Each parameter's gradient is a view of `flat`; None for a stage without parameters."""

    def __init__(self, stage: Stage, mesh: Mesh, timer: StepTimer) -> None:
        self.mesh = mesh
        self.timer = timer
        self.reductions = 0
        parameters = parameters_of(stage)
        self.flat: Tensor | None = self._flatten(parameters) if parameters else None

    def _flatten(self, parameters: list[torch.nn.Parameter]) -> Tensor:
        sizes = [p.numel() for p in parameters]
        flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=self.mesh.device)
        for p, part in zip(parameters, flat.split(sizes), strict=True):
            p.grad = part.view_as(p)
        return flat

    def average(self) -> None:
        """Call once after a step's last backward; every replica then has the mean of all."""
        if self.flat is None or self.mesh.replicas is None:
            return
        with self.timer.span("allreduce"):
            self.flat.div_(self.mesh.layout.replicas)
            self.timer.arrive()
            self.mesh.sum_over_replicas(self.flat)
        self.reductions += 1

    def norm(self) -> float | None:
        """Added up in double precision: in single a million squares are off by 1e-4."""
        if self.flat is None:
            return None
        return float(torch.linalg.vector_norm(self.flat, dtype=torch.float64))

"""Replicas of one stage: gradients in one flat buffer, averaged by one all-reduce a step.

DistributedDataParallel would do the same in one bucket, at the price of loading torch's compiler
at every start.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.engines.base import parameters_of
from gnnhpc.mesh import Mesh
from gnnhpc.models.stage import Stage
from gnnhpc.timing import StepTimer


class Replicas:
    """Does nothing where there are no replicas or nothing to learn."""

    def __init__(self, stage: Stage, mesh: Mesh, timer: StepTimer) -> None:
        self.mesh = mesh
        self.timer = timer
        self.reductions = 0
        """All-reduces since the start: one a step, or the measurement is of something else."""
        self._flat: Tensor | None = None
        if mesh.replicas is not None and parameters_of(stage):
            self._flat = self._flatten(stage)

    def _flatten(self, stage: Stage) -> Tensor:
        parameters = parameters_of(stage)
        flat = torch.zeros(
            sum(p.numel() for p in parameters),
            dtype=parameters[0].dtype,
            device=self.mesh.device,
        )
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        return flat

    def average(self) -> None:
        """Once after a step's last backward: every replica then holds the mean of all."""
        if self._flat is None:
            return
        with self.timer.span("allreduce"):
            self._flat.div_(self.mesh.layout.replicas)
            dist.all_reduce(self._flat, group=self.mesh.replicas)
        self.reductions += 1

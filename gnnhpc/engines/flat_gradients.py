"""One stage's gradients in one flat buffer a device: averaged over replicas by one all-reduce a
step.

DistributedDataParallel would do the same in one bucket, but imports torch's compiler at every
start.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import parameters_of
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer


class Gradients:
    """Each parameter's gradient is a view of its device's buffer in `flats`; none for a stage
    without parameters.
    """

    def __init__(self, stage: Stage, mesh: Mesh, timer: StepTimer) -> None:
        self.mesh = mesh
        self.timer = timer
        self.reductions = 0
        parameters = parameters_of(stage)
        devices = dict.fromkeys(p.device for p in parameters)
        self.flats = [flatten([p for p in parameters if p.device == each]) for each in devices]

    def last_of(self, _place: int) -> contextlib.AbstractContextManager[None]:
        """Around what gives a part of the stage its last gradients in a step: nothing is done."""
        return contextlib.nullcontext()

    def average(self) -> None:
        """Call once after a step's last backward; every replica then has the mean of all."""
        if not self.flats or self.mesh.replicas is None:
            return
        with self.timer.span("allreduce"):
            for flat in self.flats:
                flat.div_(self.mesh.layout.replicas)
            self.timer.arrive()
            self._sum_over_replicas()
        self.reductions += 1

    def _sum_over_replicas(self) -> None:
        """Of several devices together: NCCL has one communicator a process and GPU."""
        if len(self.flats) == 1:
            self.mesh.sum_over_replicas(self.flats[0])
            return
        together = torch.cat([flat.to(self.mesh.device) for flat in self.flats])
        self.mesh.sum_over_replicas(together)
        sizes = [len(flat) for flat in self.flats]
        for flat, part in zip(self.flats, together.split(sizes), strict=True):
            flat.copy_(part)

    def norm(self) -> float | None:
        return norm_of(self.flats)


def norm_of(flats: Sequence[Tensor]) -> float | None:
    """Added up in double precision: in single a million squares are off by 1e-4."""
    norms = [float(torch.linalg.vector_norm(f, dtype=torch.float64)) for f in flats]
    return math.hypot(*norms) if norms else None


def flatten(parameters: Sequence[Tensor]) -> Tensor:
    """A buffer of zeros, of which each parameter's gradient is a view from now on.

    A gradient lies as its parameter does, where that is dense: torch's fused Adam goes through the
    memory of both in one order, whatever their strides say (2.13).
    """
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
    for p, part in zip(parameters, flat.split(sizes), strict=True):
        p.grad = part.as_strided(p.shape, dense_strides(p), part.storage_offset())
    return flat


def dense_strides(x: Tensor) -> tuple[int, ...]:
    """Its own where it is dense: its elements fill their memory, and no two share a place."""
    return torch.empty_like(x, device="meta").stride()

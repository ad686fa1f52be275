"""Metrics of a step over all ranks, exchanged after its last barrier."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StepOutput
from gnnhpc.engines.step_timer import StepTimes
from gnnhpc.records.schema import Phase
from gnnhpc.tasks.task import Task


@dataclass(frozen=True)
class StepMetrics:
    """Means over the samples of all replicas."""

    loss: float
    values: dict[str, float] = field(default_factory=dict)
    """By name, without the loss."""
    stop: bool = False
    """Whether a signal asks any rank to stop."""


def gather_metrics(
    mesh: Mesh,
    task: Task,
    phase: Phase,
    batch: Batch,
    output: StepOutput,
    times: StepTimes,
    stop_requested: bool,
) -> StepMetrics:
    """Sum the metrics of the stages of the loss of all replicas; a collective.

    The ranks also exchange when their gradients were ready, so that `times` counts an all-reduce
    from when the last replica had come.
    """
    names = task.metrics(phase)
    mine = torch.zeros(2 * len(names) + 2, dtype=torch.float64)
    if mesh.has_loss:
        sums = task.tally(phase, output.outputs, batch)
        flat = [part for name in names for part in sums[name]]
        mine[:-2] = torch.tensor(flat, dtype=torch.float64)
    mine[-2] = times.gradients_ready_s or 0.0
    mine[-1] = float(stop_requested)
    everyone = mesh.gather(mine)
    peers = mesh.layout.replica_ranks(mesh.stage)
    times.count_late_replicas_as_waiting(float(everyone[peers, -2].max()))
    totals = everyone[:, :-2].sum(0).view(-1, 2)
    means = {
        name: float(total / count)
        for name, (total, count) in zip(names, totals, strict=True)
        if name == "loss" or count > 0
    }
    loss = means.pop("loss")
    if mesh.has_loss and mesh.layout.replicas > 1 and mine[1] > 0:
        # This replica's own loss; `loss` is the mean over the replicas.
        means["replica_loss"] = float(mine[0] / mine[1])
    return StepMetrics(loss, means, bool(everyone[:, -1].max()))

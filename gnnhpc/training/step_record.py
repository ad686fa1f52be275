"""The record of one step on one rank: what was measured, and the metrics over all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StagePlan, StepOutput
from gnnhpc.engines.layer_profile import LayerProfile
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimes
from gnnhpc.records.schema import Phase, StepRecord
from gnnhpc.training.loss_and_metrics import Task
from gnnhpc.training.memory_and_cpu_readings import peak_rss_mib


@dataclass(frozen=True)
class StepMetrics:
    """Means over the samples of all replicas."""

    loss: float
    values: dict[str, float] = field(default_factory=dict)
    """Metric -> value, without the loss."""
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
    mine = [0.0] * (2 * len(names))
    if mesh.has_loss:
        sums = task.metric_sums(phase, output.outputs, batch)
        mine = [part for name in names for part in sums[name]]
    rest = [times.gradients_ready_s or 0.0, float(stop_requested)]
    values = torch.tensor([*mine, *rest], dtype=torch.float64)
    everyone: list[list[float]] = mesh.gather(values).tolist()
    peers = mesh.layout.replica_ranks(mesh.stage)
    times.count_late_replicas_as_waiting(max(everyone[peer][-2] for peer in peers))
    *totals, _, stops = (sum(column) for column in zip(*everyone, strict=True))
    means = {
        name: total / count if count else math.nan
        for name, total, count in zip(names, totals[::2], totals[1::2], strict=True)
        if name == "loss" or count > 0
    }
    loss = means.pop("loss")
    if mesh.has_loss and mesh.layout.replicas > 1 and mine[1] > 0:
        # This replica's own loss; `loss` is the mean over the replicas.
        means["replica_loss"] = mine[0] / mine[1]
    return StepMetrics(loss, means, bool(stops))


def step_record(
    plan: StagePlan,
    batch: Batch,
    times: StepTimes,
    profile: LayerProfile | None,
    metrics: StepMetrics,
    **fields: Any,
) -> StepRecord:
    """The record of a step on this rank; `fields` are its phase and number, and what else was
    measured."""
    mesh, split = plan.mesh, plan.experiment.split_backward
    if plan.experiment.compile == "off":
        fields["compilations"] = None
    return StepRecord(
        **fields,
        epoch=batch.epoch,
        wall_s=times.wall_s,
        forward_s=times.total("forward"),
        backward_s=times.total_backward(),
        allreduce_s=times.total("allreduce"),
        optimizer_s=times.total("optimizer"),
        wait_s=times.rest_s,
        samples=batch.samples,
        loss=metrics.loss if mesh.has_loss and math.isfinite(metrics.loss) else None,
        metrics=metrics.values if mesh.has_loss else {},
        groups={} if profile is None else profile.groups(times.spans or []),
        peak_rss_mib=peak_rss_mib(),
        recompute_s=times.recompute_s,
        sample_s=batch.loading.sample_s if batch.loading else None,
        gather_s=batch.loading.gather_s if batch.loading else None,
        sampled_edges=batch.loading.edges if batch.loading else None,
        virtual_stage_s=_virtual_stage_seconds(plan.stage, times, split=split),
        weights_s=times.total("weights") if split else None,
        profiled=profile is not None,
    )


def _virtual_stage_seconds(
    stage: Stage, times: StepTimes, *, split: bool
) -> list[list[float]] | None:
    """Seconds of each virtual stage; None where the rank has one, or the step has no spans."""
    if not stage.separate or times.spans is None:
        return None
    table = []
    for place in range(len(stage.virtual_stages)):
        seconds = [times.total("forward", place), times.total_backward(place)]
        if split:
            seconds.append(times.total("weights", place))
        table.append([round(each or 0.0, 9) for each in seconds])
    return table

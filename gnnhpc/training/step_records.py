"""The record of one step on one rank, from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.layer_profile import LayerProfile
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.step_timer import StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.record_writer import RecordWriter
from gnnhpc.records.schema import Phase, SpanRecord, StepRecord
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.training.machine_readings import MachineReadings, peak_device_mib, peak_rss_mib
from gnnhpc.training.step_metrics import StepMetrics


@dataclass(frozen=True)
class Measured:
    """What was measured of a step."""

    start_s: float
    data_s: float
    times: StepTimes
    machine: MachineReadings
    profile: LayerProfile | None


def step_record(
    experiment: Experiment,
    mesh: Mesh,
    stage: Stage,
    phase: Phase,
    step: int,
    batch: Batch,
    measured: Measured,
    metrics: StepMetrics,
    grad_norm: float | None,
    *,
    warmup: bool,
) -> StepRecord:
    times, machine, loading = measured.times, measured.machine, batch.loading
    profile = measured.profile
    return StepRecord(
        phase=phase,
        step=step,
        epoch=batch.epoch,
        warmup=warmup,
        start_s=measured.start_s,
        wall_s=times.wall_s,
        cpu_s=machine.cpu_s,
        forward_s=times.total("forward"),
        backward_s=times.total_backward(),
        allreduce_s=times.total("allreduce"),
        optimizer_s=times.total("optimizer"),
        wait_s=times.rest_s,
        data_s=measured.data_s,
        samples=batch.samples,
        loss=metrics.loss if mesh.has_loss and math.isfinite(metrics.loss) else None,
        metrics=metrics.values if mesh.has_loss else {},
        groups={} if profile is None else profile.groups(times.spans or []),
        peak_rss_mib=peak_rss_mib(),
        peak_device_mib=peak_device_mib(mesh.devices),
        involuntary_switches=machine.involuntary_switches,
        steal_s=machine.steal_s,
        grad_norm=grad_norm,
        run_delay_s=machine.run_delay_s,
        recompute_s=times.recompute_s,
        sample_s=loading.sample_s if loading else None,
        gather_s=loading.gather_s if loading else None,
        sampled_edges=loading.edges if loading else None,
        virtual_stage_s=_virtual_stage_seconds(stage, times, split=experiment.split_backward),
        weights_s=times.total("weights") if experiment.split_backward else None,
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


class RecordsSteps(Listener):
    """Writes each step's record, and its spans where the experiment asks for them."""

    def __init__(self, writer: RecordWriter, *, spans: bool) -> None:
        self._writer, self._spans = writer, spans

    def step_taken(self, taken: StepTaken) -> None:
        spans = taken.spans if self._spans else []
        self._writer.write(
            taken.record,
            *(
                SpanRecord(
                    *(taken.phase, taken.step, each.name, each.microbatch),
                    *(each.start_s, each.end_s, each.virtual_stage),
                )
                for each in spans
            ),
        )

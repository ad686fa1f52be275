"""Step records of a run that never ran: seconds follow from the layer specs and the schedule."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gnnhpc.core.schedules import Slot, timeline, virtual_stage_number
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.records.schema import Phase, SpanRecord, StepRecord

BACKWARD = 2.0
"""Backward seconds for one forward second."""
WEIGHTS = 0.5
"""Of a split backward, the share of gradients of weights."""
OVERHEAD, NOISE, FIRST_STEP = 0.02, 0.01, 1.5
"""What is added to the ideal step, the standard deviation of a step, both relative to it, and how
many times as long the first step of a phase takes."""
SAMPLING_S = 0.004
"""What a sampled mini-batch of full size takes before its step's first barrier."""


@dataclass(frozen=True)
class Machine:
    """How fast the made-up machine is."""

    seconds_a_unit: float = 2e-10
    """Forward seconds of one unit of a layer's cost and one row."""
    runs_differ: float = 0.0
    """Standard deviation of a run's logarithm from that of others."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Group of layers -> how many times as long it takes."""
    pace: Callable[[Experiment], float] = lambda _: 1.0
    """How many times as long the layers of an experiment take."""

    def drawn(self, rng: np.random.Generator) -> Machine:
        """The machine of one run."""
        factor = math.exp(rng.normal(0.0, self.runs_differ)) if self.runs_differ else 1.0
        return replace(self, seconds_a_unit=factor * self.seconds_a_unit)


class MadeSteps:
    """The layers of each virtual stage, and the forward seconds of their groups a mini-batch."""

    def __init__(self, experiment: Experiment, machine: Machine) -> None:
        self.experiment = experiment
        facts, layers = experiment.data.facts(), experiment.model.outline(experiment.data.facts())
        self.parts = [[layers[i] for i in part] for part in cut(experiment)]
        rows = experiment.batch_size or math.ceil(facts.nodes / experiment.layout.replicas)
        unit = rows * machine.seconds_a_unit * machine.pace(experiment)
        if experiment.sampling is not None:
            unit *= facts.edges / facts.nodes
        self.groups: list[dict[str, float]] = []
        for part in self.parts:
            groups: dict[str, float] = defaultdict(float)
            for layer in part:
                groups[layer.group] += layer.cost * unit * machine.slower.get(layer.group, 1.0)
            self.groups.append(groups)

    def numbers(self, stage: int) -> list[int]:
        """The numbers of a stage's virtual stages."""
        schedule, stages = self.experiment.schedule, self.experiment.layout.stages
        count = len(self.parts) // stages
        return [virtual_stage_number(schedule, stage, stages, place) for place in range(count)]

    def step(
        self, phase: Phase, step: int, begin: int, clock: float, rng: np.random.Generator
    ) -> tuple[float, list[list[StepRecord | SpanRecord]]]:
        """Seconds of a step, and the records of each rank; the phase began with step `begin`."""
        experiment = self.experiment
        layout, training = experiment.layout, phase == "train"
        factor = (1.0 + abs(rng.normal(0.0, NOISE))) * (FIRST_STEP if step == begin else 1.0)
        sampled = training and experiment.sampling is not None
        making = SAMPLING_S * factor if sampled else 0.0
        slots = self._slots(factor, training=training)
        ideal = max(slot.end_s for slot in slots)
        wall = ideal * (1.0 + OVERHEAD)
        extra = (wall - ideal) / 4.0 if training else 0.0
        allreduce = extra if layout.replicas > 1 else 0.0
        measured = step - begin - experiment.warmup_steps
        count = experiment.profiled_steps(begin) if training else 0
        profiled = 0 <= measured < count
        metrics, loss = quality(experiment, phase, step)
        metrics |= {"replica_loss": loss} if layout.replicas > 1 else {}
        samples = shares(experiment)
        records: list[list[StepRecord | SpanRecord]] = []
        for rank in range(layout.world_size):
            stage, share = layout.stage_of(rank), samples[layout.replica_of(rank)]
            passes = self._passes(stage, factor, training=training)
            forward, backward = (sum(each[place] for each in passes) for place in (0, 1))
            last = stage == experiment.loss_stage
            sampling = {
                "sample_s": 0.25 * making,
                "gather_s": 0.75 * making,
                "sampled_edges": 60 * share,
            }
            record = StepRecord(
                phase=phase,
                step=step,
                epoch=0 if sampled else step // 10,
                warmup=measured < 0,
                start_s=clock + making,
                wall_s=wall,
                cpu_s=forward + backward + 2 * extra,
                forward_s=forward,
                backward_s=backward,
                allreduce_s=allreduce,
                optimizer_s=extra,
                wait_s=max(0.0, wall - forward - backward - extra - allreduce),
                data_s=making or 1e-4,
                samples=share,
                loss=loss if last else None,
                metrics=metrics if last else {},
                groups=self._group_seconds(stage, factor) if profiled else {},
                profiled=profiled,
                peak_rss_mib=300.0 + 10 * stage,
                involuntary_switches=int(rng.integers(0, 3)),
                steal_s=0.0,
                # Together the stages of every layout have the same gradient.
                grad_norm=1.0 / (1.0 + step) / math.sqrt(layout.stages) if training else None,
                virtual_stage_s=passes if experiment.virtual_stages > 1 else None,
                weights_s=WEIGHTS * backward if experiment.split_backward else None,
                **(sampling if sampled else {}),
            )
            mine = [slot for slot in slots if slot.stage == stage]
            spans = _spans(phase, step, mine, wall, extra, allreduce) if experiment.spans else ()
            records.append([record, *spans])
        return wall + making, records

    def _slots(self, factor: float, *, training: bool) -> list[Slot]:
        experiment, m = self.experiment, self.experiment.microbatches
        split = WEIGHTS if experiment.split_backward else 0.0
        forward = [sum(groups.values()) * factor / m for groups in self.groups]
        backward = [BACKWARD * seconds for seconds in forward]
        slots = timeline(
            *(experiment.schedule, forward, [(1 - split) * each for each in backward], m),
            weights_s=[split * each for each in backward],
            virtual_stages=experiment.virtual_stages,
            training=training,
        )
        return [slot for slot in slots if split or slot.action.kind != "weights"]

    def _passes(self, stage: int, factor: float, *, training: bool) -> list[list[float]]:
        """Forward and backward seconds of each virtual stage, and of a split one its weights'."""
        found = []
        for number in self.numbers(stage):
            forward = sum(self.groups[number].values()) * factor
            backward = BACKWARD * forward if training else 0.0
            split = [WEIGHTS * backward] if self.experiment.split_backward else []
            found.append([forward, backward, *split])
        return found

    def _group_seconds(self, stage: int, factor: float) -> dict[str, list[float]]:
        """Of all virtual stages of a stage; two of them may have layers of one group."""
        found: dict[str, float] = defaultdict(float)
        for number in self.numbers(stage):
            for name, seconds in self.groups[number].items():
                found[name] += seconds * factor
        return {name: [seconds, BACKWARD * seconds] for name, seconds in found.items()}


def shares(experiment: Experiment) -> list[int]:
    """The samples of each replica in a whole mini-batch, which may be a graph."""
    replicas, nodes = experiment.layout.replicas, experiment.data.facts().nodes
    if experiment.batch_size is not None:
        return [experiment.batch_size] * replicas
    ends = [nodes * number // replicas for number in range(replicas + 1)]
    return [stop - start for start, stop in itertools.pairwise(ends)]


def _spans(
    phase: Phase, step: int, slots: list[Slot], wall: float, extra: float, allreduce: float
) -> Iterator[SpanRecord]:
    now = 0.0
    for slot in slots:
        if slot.start_s > now:
            yield SpanRecord(phase, step, "wait", None, now, slot.start_s)
        action, now = slot.action, slot.end_s
        times: Any = (action.kind, action.microbatch, slot.start_s, now)
        yield SpanRecord(phase, step, *times, virtual_stage=action.virtual_stage)
    if allreduce:
        yield SpanRecord(phase, step, "allreduce", None, wall - 2 * extra, wall - extra)
    if extra:
        yield SpanRecord(phase, step, "optimizer", None, wall - extra, wall)


def quality(experiment: Experiment, phase: Phase, step: int) -> tuple[dict[str, float], float]:
    """Metrics and loss of a step."""
    if phase == "test":
        names = ("accuracy", "val_accuracy")[: 1 if experiment.model.name == "vig" else 2]
        return dict.fromkeys(names, 0.6 - 0.01 * experiment.seed), 1.2
    accuracy = 1.0 - 0.9 * math.exp(-0.05 * (step + 1))
    return {"accuracy": accuracy}, 2.3 * math.exp(-0.02 * step)

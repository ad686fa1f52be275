"""Pipeline schedules: what each stage does in which order, and the step time that follows.

GPipe: Huang et al. 2019 (arXiv:1811.06965), section 2.3. 1F1B: Narayanan et al. 2019
(PipeDream, SOSP'19), section 3.2, with the flush of PipeDream-2BW.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["gpipe", "1f1b"]
Checkpoint = Literal["never", "except_last", "always"]
"""Which micro-batches' forwards are computed again in backward (Chen et al. 2016)."""
Kind = Literal["forward", "backward"]


@dataclass(frozen=True)
class Action:
    """One micro-batch's forward or backward pass through one stage."""

    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.microbatch}"


@dataclass(frozen=True)
class Slot:
    """When a stage does an action, in seconds from the start of the step."""

    stage: int
    action: Action
    start_s: float
    end_s: float


def stage_order(
    schedule: ScheduleName, stage: int, stages: int, microbatches: int, *, training: bool = True
) -> list[Action]:
    """What `stage` does, in order; evaluation has the forward actions only."""
    forwards = [Action("forward", m) for m in range(microbatches)]
    if not training:
        return forwards
    backwards = [Action("backward", m) for m in range(microbatches)]
    if schedule == "gpipe":
        return forwards + backwards
    warmup = min(microbatches, stages - stage)
    order = forwards[:warmup]
    for m in range(microbatches - warmup):
        order += [backwards[m], forwards[warmup + m]]
    return order + backwards[microbatches - warmup :]


def timeline(
    schedule: ScheduleName,
    forward_s: Sequence[float] | Sequence[Sequence[float]],
    backward_s: Sequence[float] | Sequence[Sequence[float]],
    microbatches: int,
    *,
    training: bool = True,
) -> list[Slot]:
    """When each action runs if it takes the given seconds, and transfers take none.

    `forward_s[stage]` is seconds a micro-batch, or a list of them, one a micro-batch; likewise
    `backward_s`. A forward waits for the stage before, a backward for the stage after.
    """
    stages = len(forward_s)
    orders = [
        stage_order(schedule, s, stages, microbatches, training=training) for s in range(stages)
    ]
    done: dict[tuple[int, Action], float] = {}
    clock = [0.0] * stages
    position = [0] * stages
    slots: list[Slot] = []
    while any(position[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            while position[s] < len(orders[s]):
                action = orders[s][position[s]]
                ready = _ready_at(done, s, stages, action)
                if ready is None:
                    break
                seconds = (forward_s if action.kind == "forward" else backward_s)[s]
                cost = seconds if isinstance(seconds, int | float) else seconds[action.microbatch]
                start = max(clock[s], ready)
                clock[s] = done[s, action] = start + cost
                slots.append(Slot(s, action, start, clock[s]))
                position[s] += 1
                moved = True
        if not moved:
            raise ValueError(f"schedule {schedule!r} deadlocks at {stages} stages, {microbatches}")
    return slots


def _ready_at(
    done: dict[tuple[int, Action], float], stage: int, stages: int, action: Action
) -> float | None:
    if action.kind == "forward":
        return 0.0 if stage == 0 else done.get((stage - 1, action))
    if stage == stages - 1:
        return done.get((stage, Action("forward", action.microbatch)))
    return done.get((stage + 1, action))


def ideal_step_s(
    schedule: ScheduleName,
    forward_s: Sequence[float] | Sequence[Sequence[float]],
    backward_s: Sequence[float] | Sequence[Sequence[float]],
    microbatches: int,
    *,
    training: bool = True,
) -> float:
    """Seconds of the step if stages take what was measured and nothing else takes time."""
    slots = timeline(schedule, forward_s, backward_s, microbatches, training=training)
    return max(slot.end_s for slot in slots)


def bound(replicas: int, stages: int, microbatches: int) -> float:
    """The most that balanced stages can give over one process: R * S*M / (M+S-1)."""
    return replicas * stages * microbatches / (microbatches + stages - 1)


def ideal_bubble(stages: int, microbatches: int) -> float:
    """The share of rank-time that balanced stages must wait: (S-1) / (M+S-1)."""
    return (stages - 1) / (microbatches + stages - 1)


def in_flight(schedule: ScheduleName, stage: int, stages: int, microbatches: int) -> int:
    """How many micro-batches' activations `stage` holds at most."""
    held = peak = 0
    for action in stage_order(schedule, stage, stages, microbatches):
        held += 1 if action.kind == "forward" else -1
        peak = max(peak, held)
    return peak


def recomputed_microbatches(checkpoint: Checkpoint, microbatches: int) -> range:
    """Those of which a stage keeps its input alone."""
    kept = {"never": microbatches, "except_last": 1, "always": 0}[checkpoint]
    return range(microbatches - kept)

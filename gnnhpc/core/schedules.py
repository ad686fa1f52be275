"""Pipeline schedules: what each stage does in which order; step time, bound and bubble of that.

GPipe: Huang et al. 2019 (arXiv:1811.06965), section 2.3. 1F1B: Narayanan et al. 2019
(PipeDream, SOSP'19), section 3.2, with the flush of PipeDream-2BW. Interleaved 1F1B: Narayanan et
al. 2021 (arXiv:2104.04473), section 2.2. Each stage holds several virtual stages, so it waits only
for the time of one. Virtual stage v of stage s has number v*S + s, counted from the first layers;
under the other schedules a stage is one virtual stage. Zero-bubble: ZB-H1 of Qi et al. 2024
(arXiv:2401.10241), section 3.1. Its backward is split: no other stage waits for the gradients of
weights, so they fill time that would be waiting. ZBV: section 6 there. Each stage has two virtual
stages; the second ones go back from the last stage to the first, so that virtual stage 1 of stage
s has number 2*S - 1 - s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]
SPLIT_BACKWARD: Final[frozenset[str]] = frozenset({"zero-bubble", "zbv"})
"""Schedules that compute the gradients of weights apart from those of inputs."""
Recomputation = Literal["never", "except_last", "always"]
"""Which micro-batches' forwards are recomputed in backward (Chen et al. 2016)."""
Kind = Literal["forward", "backward", "weights"]
"""Under a split backward, `backward` has the gradients of inputs, `weights` those of weights."""


@dataclass(frozen=True)
class Action:
    """A forward, a backward or gradients of weights, of one micro-batch in one virtual stage."""

    kind: Kind
    microbatch: int
    virtual_stage: int = 0
    """Counted within its stage."""

    def __str__(self) -> str:
        """`F0`, `B3`, `W3`; a dash for each virtual stage before it: `F0'`, `B3''`."""
        return f"{self.kind[0].upper()}{self.microbatch}" + "'" * self.virtual_stage


@dataclass(frozen=True)
class Slot:
    """When a stage does an action, in seconds from the start of the step; of many steps, arrays."""

    stage: int
    action: Action
    start_s: Any
    end_s: Any


def stage_order(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    virtual_stages: int = 1,
    training: bool = True,
) -> list[Action]:
    """What `stage` does, in order; evaluation has the forward actions only.

    ZBV has two virtual stages a stage, the interleaved schedule any number, and the others one.
    Micro-batches of the interleaved schedule are a multiple of the stages, or fewer; an Experiment
    has no others.
    """
    if schedule == "zbv" and stages > 1:
        return _v_order(stage, stages, microbatches, training=training)
    forwards = _by_groups("forward", stages, microbatches, range(virtual_stages))
    if not training:
        return forwards
    downwards = range(virtual_stages - 1, -1, -1)
    backwards = _by_groups("backward", stages, microbatches, downwards)
    if schedule == "gpipe":
        return forwards + backwards
    warmup = stages - stage
    if schedule == "interleaved":
        warmup = (virtual_stages - 1) * stages + 2 * (stages - stage - 1) + 1
    warmup = min(len(forwards), warmup)
    # Gradients of weights lag by one backward for each stage before this one, since those stages
    # wait for its backwards; no stage holds more micro-batches than the first one does.
    split = backwards if schedule in SPLIT_BACKWARD else []
    weights = [Action("weights", each.microbatch) for each in split]
    order = forwards[:warmup]
    for n, backward in enumerate(backwards):
        order.append(backward)
        if n >= stage:
            order += weights[n - stage : n - stage + 1]
        order += forwards[warmup + n : warmup + n + 1]
    return order + weights[max(0, len(weights) - stage) :]


def _by_groups(kind: Kind, stages: int, microbatches: int, virtual_stages: range) -> list[Action]:
    """Groups of as many micro-batches as stages, each group through every virtual stage."""
    group = min(stages, microbatches) if len(virtual_stages) > 1 else microbatches
    return [
        Action(kind, m, virtual_stage)
        for first in range(0, microbatches, group)
        for virtual_stage in virtual_stages
        for m in range(first, first + group)
    ]


def _v_order(stage: int, stages: int, microbatches: int, *, training: bool) -> list[Action]:
    """The order of ZBV, written as one letter an action; small letters are virtual stage 1.

    Each letter stands for its next micro-batch. A stage does further forwards until the first
    micro-batch comes back to its second virtual stage; then its two virtual stages alternate, so
    that forwards and backwards arrive when they are needed. The letters are for as many
    micro-batches as keep all stages busy; those of micro-batches that do not exist are skipped.
    """
    later = stages - stage
    full = max(microbatches, 2 * stages - 1)
    letters = "F" * (2 * later - 1)
    if training:
        letters += "fF" * stage + "fbw" * later + "FBWfbw" * (full - stages)
        letters += "Bb" * stage + "BW" * later + "w" * stage + "W" * stage
    else:
        letters += "fF" * full
    kinds: dict[str, Kind] = {"f": "forward", "b": "backward", "w": "weights"}
    numbers: dict[str, int] = dict.fromkeys("FBWfbw", 0)
    order = []
    for letter in letters:
        if numbers[letter] < microbatches:
            order.append(Action(kinds[letter.lower()], numbers[letter], int(letter.islower())))
        numbers[letter] += 1
    return order


def virtual_stage_number(
    schedule: ScheduleName, stage: int, stages: int, virtual_stage: int
) -> int:
    """The number of a stage's virtual stage among all of the model, first to last."""
    if schedule == "zbv" and virtual_stage == 1:
        return 2 * stages - 1 - stage
    return virtual_stage * stages + stage


def place_of_virtual_stage(schedule: ScheduleName, number: int, stages: int) -> tuple[int, int]:
    """The stage that holds virtual stage `number` of the model, and its place in that stage."""
    virtual_stage, place = divmod(number, stages)
    if schedule == "zbv" and virtual_stage == 1:
        return stages - 1 - place, virtual_stage
    return place, virtual_stage


def loss_stage(schedule: ScheduleName, stages: int) -> int:
    """The stage that holds the model's last layers and computes the loss."""
    return 0 if schedule == "zbv" else stages - 1


def input_from(
    schedule: ScheduleName, stage: int, stages: int, virtual_stages: int, action: Action
) -> tuple[int, Action] | None:
    """The stage and the action that make the input of `action` of `stage`; None for mini-batches.

    The backward of the last virtual stage needs its own forward; gradients of weights need their
    own backward.
    """
    if action.kind == "weights":
        return stage, Action("backward", action.microbatch, action.virtual_stage)
    number = virtual_stage_number(schedule, stage, stages, action.virtual_stage)
    if action.kind == "forward":
        if number == 0:
            return None
        before, place = place_of_virtual_stage(schedule, number - 1, stages)
        return before, Action("forward", action.microbatch, place)
    if number + 1 == stages * virtual_stages:
        return stage, Action("forward", action.microbatch, action.virtual_stage)
    after, place = place_of_virtual_stage(schedule, number + 1, stages)
    return after, Action("backward", action.microbatch, place)


Seconds = Sequence[Any]
"""Seconds a micro-batch in each virtual stage of the model, or a list of them for each."""


def timeline(
    schedule: ScheduleName,
    forward_s: Seconds,
    backward_s: Seconds,
    microbatches: int,
    *,
    weights_s: Seconds | None = None,
    virtual_stages: int = 1,
    training: bool = True,
    later: Callable[[Any, Any], Any] = max,
) -> list[Slot]:
    """When each action runs if it takes the given seconds, and transfers take none.

    `forward_s[number]` and `backward_s[number]` are seconds a micro-batch of a virtual stage (see
    `virtual_stage_number`), or a list of one number a micro-batch. `weights_s` is for schedules
    with a split backward, whose `backward_s` is then without it; None stands for zeros. Seconds may
    be arrays of many steps; then `later` is what takes the larger of two of them.
    """
    stages = len(forward_s) // virtual_stages
    tables: dict[Kind, Seconds] = {
        "forward": forward_s,
        "backward": backward_s,
        "weights": [0.0] * len(forward_s) if weights_s is None else weights_s,
    }
    orders = [
        stage_order(
            schedule, s, stages, microbatches, virtual_stages=virtual_stages, training=training
        )
        for s in range(stages)
    ]
    done: dict[tuple[int, Action], Any] = {}
    clock: list[Any] = [0.0] * stages
    position, slots = [0] * stages, list[Slot]()
    while any(position[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for s in range(stages):
            while position[s] < len(orders[s]):
                action = orders[s][position[s]]
                needed = input_from(schedule, s, stages, virtual_stages, action)
                ready = 0.0 if needed is None else done.get(needed)
                if ready is None:
                    break
                number = virtual_stage_number(schedule, s, stages, action.virtual_stage)
                seconds = tables[action.kind][number]
                cost = seconds[action.microbatch] if isinstance(seconds, list) else seconds
                start = later(clock[s], ready)
                clock[s] = done[s, action] = start + cost
                slots.append(Slot(s, action, start, clock[s]))
                position[s] += 1
                moved = True
        if not moved:
            raise ValueError(f"schedule {schedule!r} deadlocks at {stages} stages, {microbatches}")
    return slots


def in_flight(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    virtual_stages: int = 1,
    virtual_stage: int | None = None,
    first: Kind = "forward",
) -> int:
    """The most micro-batches whose activations `stage` holds, in one virtual stage or in all.

    They are held from the action `first` on, until the gradients of weights are computed under a
    split backward, else until the backward. With `first` the backward, these are micro-batches
    whose output gradients it holds.
    """
    last = "weights" if schedule in SPLIT_BACKWARD else "backward"
    held = peak = 0
    for action in stage_order(schedule, stage, stages, microbatches, virtual_stages=virtual_stages):
        if virtual_stage in (None, action.virtual_stage):
            held += action.kind == first
            peak = max(peak, held)
            held -= action.kind == last
    return peak


def recomputed_microbatches(checkpointing: Recomputation, microbatches: int) -> range:
    """The micro-batches of which a stage keeps its input alone."""
    kept = {"never": microbatches, "except_last": 1, "always": 0}[checkpointing]
    return range(microbatches - kept)


def bound(replicas: int, stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """The highest speedup of balanced stages over one process: R * S*M / (M + (S-1)/V).

    V is the number of virtual stages a stage, 1 but under the interleaved schedule (Narayanan et
    al. 2021, section 2.2.2) and ZBV. `bound_with_split_backward` is for schedules that split it.
    """
    passes = virtual_stages * microbatches
    return replicas * stages * passes / (passes + stages - 1)


def bound_with_split_backward(
    schedule: ScheduleName,
    replicas: int,
    stages: int,
    microbatches: int,
    shares: tuple[float, float, float],
    virtual_stages: int = 1,
) -> float:
    """`bound` of a schedule that computes the gradients of weights apart.

    `shares` are the relative seconds of forwards, gradients of inputs and gradients of weights, the
    same in each stage and virtual stage. For equal shares ZB-H1 has the bound of three virtual
    stages once there are as many micro-batches as stages (Qi et al. 2024, table 2), and ZBV that of
    six from 2*S - 1 micro-batches on.
    """
    forward, backward, weights = (
        [share / virtual_stages] * (stages * virtual_stages) for share in shares
    )
    slots = timeline(
        *(schedule, forward, backward, microbatches),
        weights_s=weights,
        virtual_stages=virtual_stages,
    )
    step_s: float = max(slot.end_s for slot in slots)
    return replicas * stages * microbatches * sum(shares) / step_s

"""Pipeline schedules: what each stage does in which order, and the step time that follows.

GPipe: Huang et al. 2019 (arXiv:1811.06965), section 2.3. 1F1B: Narayanan et al. 2019
(PipeDream, SOSP'19), section 3.2, with the flush of PipeDream-2BW. Interleaved 1F1B: Narayanan et
al. 2021 (arXiv:2104.04473), section 2.2: each stage has several parts of the model, so that it
waits for a part at a time. Part p of stage s is number p*S + s of all, from the first layers to
the last; under the other schedules a stage is one part. Zero-bubble: ZB-H1 of Qi et al. 2024
(arXiv:2401.10241), section 3.1: gradients of weights, which no other stage waits for, are computed
apart from those of inputs, in what would be waiting. ZBV: section 6 there, two parts a stage, of
which the second ones go back from the last stage to the first; part 1 of stage s is number
2*S - 1 - s of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]
SPLIT_BACKWARD: Final[frozenset[str]] = frozenset({"zero-bubble", "zbv"})
"""Schedules under which gradients of weights are computed apart from those of inputs."""
Recomputation = Literal["never", "except_last", "always"]
"""Which micro-batches' forwards are computed again in backward (Chen et al. 2016)."""
Kind = Literal["forward", "backward", "weights"]
"""Where weights are apart, `backward` is of inputs alone, and `weights` the rest of it."""


@dataclass(frozen=True)
class Action:
    """One micro-batch's forward or backward pass, or its second half, through a part of a stage."""

    kind: Kind
    microbatch: int
    part: int = 0
    """Of the stage's own parts."""

    def __str__(self) -> str:
        """`F0`, `B3`, `W3`; of a stage's later parts `F0'`, `B3''`."""
        return f"{self.kind[0].upper()}{self.microbatch}" + "'" * self.part


@dataclass(frozen=True)
class Slot:
    """When a stage does an action, in seconds from the start of the step."""

    stage: int
    action: Action
    start_s: float
    end_s: float


def stage_order(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    parts: int = 1,
    training: bool = True,
) -> list[Action]:
    """What `stage` does, in order; evaluation has the forward actions only.

    Raises ValueError for `parts` that the schedule does not have, and for micro-batches of the
    interleaved one that are more than the stages and no multiple of them.
    """
    if schedule == "zbv":
        if parts != (2 if stages > 1 else 1):
            raise ValueError(f"schedule 'zbv' has two parts a stage, not {parts}")
        if parts == 2:
            return _v_order(stage, stages, microbatches, training=training)
    elif schedule == "interleaved":
        if microbatches > stages and microbatches % stages:
            raise ValueError(f"{microbatches} micro-batches are no multiple of {stages} stages")
    elif parts > 1:
        raise ValueError(f"schedule {schedule!r} has one part a stage, not {parts}")
    forwards = _by_groups("forward", stages, microbatches, range(parts))
    if not training:
        return forwards
    backwards = _by_groups("backward", stages, microbatches, range(parts - 1, -1, -1))
    if schedule == "gpipe":
        return forwards + backwards
    warmup = stages - stage
    if schedule == "interleaved":
        warmup = (parts - 1) * stages + 2 * (stages - stage - 1) + 1
    warmup = min(len(forwards), warmup)
    # Later by as many backwards as there are stages before this one, which wait for its backwards;
    # no stage holds more than the first one does.
    apart = backwards if schedule in SPLIT_BACKWARD else []
    weights = [Action("weights", each.microbatch) for each in apart]
    order = forwards[:warmup]
    for n, backward in enumerate(backwards):
        order.append(backward)
        if n >= stage:
            order += weights[n - stage : n - stage + 1]
        order += forwards[warmup + n : warmup + n + 1]
    return order + weights[max(0, len(weights) - stage) :]


def _by_groups(kind: Kind, stages: int, microbatches: int, parts: range) -> list[Action]:
    """As many micro-batches as stages go through a part, then through the next of `parts`."""
    group = min(stages, microbatches) if len(parts) > 1 else microbatches
    return [
        Action(kind, m, part)
        for first in range(0, microbatches, group)
        for part in parts
        for m in range(first, first + group)
    ]


def _v_order(stage: int, stages: int, microbatches: int, *, training: bool) -> list[Action]:
    """Of ZBV: a letter an action, small ones of the stage's second part.

    Each letter is of its next micro-batch. Before the first one's second part comes back to a
    stage, this has time for forwards of others; then its two parts take turns, so that forwards
    and backwards arrive when they are needed. Written for as many micro-batches as keep all stages
    busy; what is of more than there are is left out.
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


def part_number(schedule: ScheduleName, stage: int, stages: int, part: int) -> int:
    """Of a stage's part among all parts of the model, first to last."""
    if schedule == "zbv" and part == 1:
        return 2 * stages - 1 - stage
    return part * stages + stage


def place_of_part(schedule: ScheduleName, number: int, stages: int) -> tuple[int, int]:
    """The stage that holds a part of the model, and which of the stage's own it is."""
    part, place = divmod(number, stages)
    if schedule == "zbv" and part == 1:
        return stages - 1 - place, part
    return place, part


def loss_stage(schedule: ScheduleName, stages: int) -> int:
    """The stage that holds the model's last part, and computes the loss."""
    return 0 if schedule == "zbv" else stages - 1


def input_from(
    schedule: ScheduleName, stage: int, stages: int, parts: int, action: Action
) -> tuple[int, Action] | None:
    """The stage and the action that makes what `action` of `stage` takes; None for the inputs.

    The last part's backward takes its own forward's loss, and weights their own backward.
    """
    if action.kind == "weights":
        return stage, Action("backward", action.microbatch, action.part)
    number = part_number(schedule, stage, stages, action.part)
    if action.kind == "forward":
        if number == 0:
            return None
        before, part = place_of_part(schedule, number - 1, stages)
        return before, Action("forward", action.microbatch, part)
    if number + 1 == stages * parts:
        return stage, Action("forward", action.microbatch, action.part)
    after, part = place_of_part(schedule, number + 1, stages)
    return after, Action("backward", action.microbatch, part)


Seconds = Sequence[float] | Sequence[Sequence[float]]
"""Of a micro-batch in each part of the model, or a list of them, one a micro-batch."""


def timeline(
    schedule: ScheduleName,
    forward_s: Seconds,
    backward_s: Seconds,
    microbatches: int,
    *,
    weights_s: Seconds | None = None,
    parts: int = 1,
    training: bool = True,
) -> list[Slot]:
    """When each action runs if it takes the given seconds, and transfers take none.

    `forward_s[number]` is seconds a micro-batch of a part of the model (see `part_number`), or a
    list of them, one a micro-batch; likewise `backward_s`. A forward waits for the part before, a
    backward for the part after. `weights_s` is of schedules that have weights apart, none where it
    is left out, and `backward_s` is then without it.
    """
    stages = len(forward_s) // parts
    tables: dict[Kind, Seconds] = {
        "forward": forward_s,
        "backward": backward_s,
        "weights": [0.0] * len(forward_s) if weights_s is None else weights_s,
    }
    orders = [
        stage_order(schedule, s, stages, microbatches, parts=parts, training=training)
        for s in range(stages)
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
                needed = input_from(schedule, s, stages, parts, action)
                ready = 0.0 if needed is None else done.get(needed)
                if ready is None:
                    break
                seconds = tables[action.kind][part_number(schedule, s, stages, action.part)]
                cost = seconds if isinstance(seconds, int | float) else seconds[action.microbatch]
                start = max(clock[s], ready)
                clock[s] = done[s, action] = start + cost
                slots.append(Slot(s, action, start, clock[s]))
                position[s] += 1
                moved = True
        if not moved:
            raise ValueError(f"schedule {schedule!r} deadlocks at {stages} stages, {microbatches}")
    return slots


def ideal_step_s(
    schedule: ScheduleName,
    forward_s: Seconds,
    backward_s: Seconds,
    microbatches: int,
    *,
    weights_s: Seconds | None = None,
    parts: int = 1,
    training: bool = True,
) -> float:
    """Seconds of the step if parts take what was measured and nothing else takes time."""
    slots = timeline(
        *(schedule, forward_s, backward_s, microbatches),
        weights_s=weights_s,
        parts=parts,
        training=training,
    )
    return max(slot.end_s for slot in slots)


def in_flight(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    parts: int = 1,
    part: int | None = None,
) -> int:
    """Of how many micro-batches `stage` holds activations at most, in one `part` or in all.

    Where weights are apart until the gradients of its weights are there.
    """
    last: Kind = "weights" if schedule in SPLIT_BACKWARD else "backward"
    return _held_at_most("forward", last, schedule, stage, stages, microbatches, parts, part)


def gradients_in_flight(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    parts: int = 1,
    part: int | None = None,
) -> int:
    """Of how many micro-batches `stage` holds gradients of its outputs at most, in one `part` or in
    all: of one, but where weights are apart, as they are held until those of its weights are there.
    """
    if schedule not in SPLIT_BACKWARD:
        return 1
    return _held_at_most("backward", "weights", schedule, stage, stages, microbatches, parts, part)


def _held_at_most(
    first: Kind,
    last: Kind,
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    parts: int,
    part: int | None,
) -> int:
    held = peak = 0
    for action in stage_order(schedule, stage, stages, microbatches, parts=parts):
        if part in (None, action.part):
            held += (action.kind == first) - (action.kind == last)
            peak = max(peak, held)
    return peak


def recomputed_microbatches(checkpoint: Recomputation, microbatches: int) -> range:
    """Those of which a stage keeps its input alone."""
    kept = {"never": microbatches, "except_last": 1, "always": 0}[checkpoint]
    return range(microbatches - kept)


def bound(replicas: int, stages: int, microbatches: int, parts: int = 1) -> float:
    """The most that balanced stages can give over one process: R * S*M / (M + (S-1)/V).

    V is the parts of a stage: 1, but under the interleaved schedule (Narayanan et al. 2021, 2.2.2)
    and of ZBV, which has 2.
    Schedules with weights apart have `bound_with_weights`.
    """
    passes = parts * microbatches
    return replicas * stages * passes / (passes + stages - 1)


def bound_with_weights(
    schedule: ScheduleName,
    replicas: int,
    stages: int,
    microbatches: int,
    shares: tuple[float, float, float],
    parts: int = 1,
) -> float:
    """`bound` of a schedule with weights apart, where each stage computes forwards, gradients of
    inputs and gradients of weights for as long as `shares` have it, each of its parts alike.

    Of thirds ZB-H1's is that of three parts a stage from as many micro-batches as stages on (Qi et
    al. 2024, table 2), and without gradients of weights 1F1B's; ZBV's of thirds is that of six
    parts from 2*S - 1 micro-batches on: there a stage waits for the forwards of first parts before
    it, and never again.
    """
    forward, backward, weights = ([share / parts] * (stages * parts) for share in shares)
    step_s = ideal_step_s(
        *(schedule, forward, backward, microbatches), weights_s=weights, parts=parts
    )
    return replicas * stages * microbatches * sum(shares) / step_s


def ideal_bubble(stages: int, microbatches: int, parts: int = 1) -> float:
    """The share of rank-time that balanced stages must wait: (S-1) / (V*M + S-1)."""
    return (stages - 1) / (parts * microbatches + stages - 1)

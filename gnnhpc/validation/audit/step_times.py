"""Checks of recorded times: they are possible, add up, and fit into the attempt. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from gnnhpc.core.schedules import Action, stage_order
from gnnhpc.records.schema import Check
from gnnhpc.validation.audit.rank_records import AttemptRecords, RankRecords
from gnnhpc.validation.verdicts import verdict_of

ROUNDING_S = 1e-6
"""A sum of a few numbers of nine digits after the point."""
CLOCK_S = 1e-4
"""Difference between two readings of a clock for one event."""
BETWEEN_SHARE, BETWEEN_S = 0.5, 0.02
"""Time between two training steps above which a step may leave out work: a share of the step and
what gathering and recording take on a busy machine."""
BARRIER_SHARE, BARRIER_S = 0.05, 0.05
"""Difference of two ranks' sums of wall times, which lie between the same barriers."""
DELAYS = 3
"""How many times as long as within a step a rank may wait for a processor between two steps."""
_PARTS = ("forward_s", "backward_s", "allreduce_s", "optimizer_s", "wait_s")


def step_times(attempt: AttemptRecords) -> Check:
    """Times are not negative, parts add up to steps, and steps follow one another in the run."""
    times = attempt.result.started_at, attempt.result.ended_at
    began, ended = map(datetime.fromisoformat, times)
    elapsed = (ended - began).total_seconds()
    faults = [
        f"rank {rank.rank}{fault}" for rank in attempt.ranks for fault in _impossible(rank, elapsed)
    ]
    return verdict_of("step times", faults, "parts add up to the steps, these fit into the run")


def _impossible(rank: RankRecords, elapsed: float) -> Iterator[str]:
    if not rank.steps:
        return
    wall, start = rank.column("wall_s"), rank.column("start_s")
    parts, ends = np.array([rank.column(name) for name in _PARTS]), start + wall
    wrong = {
        "it has a negative part": (parts < -CLOCK_S).any(0) | ~(wall > 0),
        "parts do not add up to the step": np.abs(parts.sum(0) - wall) > ROUNDING_S,
        "it begins before the step before it has ended": start
        < np.append(-np.inf, ends[:-1] - CLOCK_S),
    }
    for cause, steps in wrong.items():
        for n in np.flatnonzero(steps)[:1]:
            yield f", {rank.steps[n].phase} step {rank.steps[n].step}: {cause} ({wall[n]:.6f} s)"
    if not ends[-1] - start[0] <= elapsed + 1.0:
        yield f": steps take {ends[-1] - start[0]:.3f} s of an attempt of {elapsed:.3f} s"


def schedule(attempt: AttemptRecords) -> Check:
    """Spans of the native engine follow one another as the schedule orders its actions.

    An action without a span, such as the backward of a stage without parameters, is left out.
    """
    experiment, faults = attempt.result.experiment, []
    stages = len(attempt.ranks) // int(attempt.result.layout["replicas"])
    native = experiment["engine"] == "native" and stages > 1
    for rank in attempt.ranks if native else ():
        orders = {
            phase: stage_order(
                *(experiment["schedule"], rank.header.stage, stages, experiment["microbatches"]),
                virtual_stages=int(experiment["virtual_stages"]),
                training=phase == "train",
            )
            for phase in ("train", "test")
        }
        for (phase, step), recorded in rank.spans.items():
            taken = [
                Action(span.name, span.microbatch, span.virtual_stage)
                for span in recorded
                if span.name in ("forward", "backward", "weights") and span.microbatch is not None
            ]
            planned = [action for action in orders[phase] if action in set(taken)]
            pairs = enumerate(zip(taken, planned, strict=False))
            other = next(((n, t, p) for n, (t, p) in pairs if t != p), None)
            if other is not None:
                n, actual, expected = other
                faults.append(
                    f"rank {rank.rank}, {phase} step {step}: action {n} is {actual}, "
                    f"{experiment['schedule']} has {expected} there"
                )
    return verdict_of("schedule", faults, "stages did their actions in the schedule's order")


def barriers(attempt: AttemptRecords) -> Check:
    """Ranks agree on how long steps took, as all leave the same barriers.

    A rank that waits for a processor reads its clock later, by no more than it waits.
    """
    shortest = min(len(rank.steps) for rank in attempt.ranks)
    sums = [float(rank.column("wall_s")[:shortest].sum()) for rank in attempt.ranks]
    middle = float(np.median(sums))
    allowed = BARRIER_SHARE * middle + BARRIER_S + max(map(_delay_s, attempt.ranks))
    faults = [
        f"steps of rank {rank.rank} took {total:.3f} s, those of most ranks {middle:.3f} s"
        for rank, total in zip(attempt.ranks, sums, strict=True)
        if abs(total - middle) > allowed
    ]
    return verdict_of("barriers", faults, "ranks agree on how long the steps took")


def _delay_s(rank: RankRecords) -> float:
    """Seconds that a rank waited for a processor; half of its steps where that is not known."""
    delay = float(rank.column("run_delay_s").sum())
    return delay if np.isfinite(delay) else 0.5 * float(rank.column("wall_s").sum())


def between_steps(attempt: AttemptRecords) -> Check:
    """Flags steps that leave out work, which then takes its time before the next step.

    So does a step whose device is not synchronised at its end. Loading of data is no such work. A
    low quantile leaves out checkpoints and evaluations. On a busy machine ranks wait for processors
    between steps too, about as long as within them, and then for each other.
    """
    faults, delay = [], sum(map(_delay_s, attempt.ranks))
    for rank in attempt.ranks:
        start, wall, data = (rank.column(field) for field in ("start_s", "wall_s", "data_s"))
        training = np.array([step.phase == "train" for step in rank.steps], np.bool_)
        gaps = (start[1:] - (start + wall)[:-1] - data[1:])[training[1:] & training[:-1]]
        if not len(gaps):
            continue
        gap = float(np.quantile(gaps, 0.2, method="lower"))
        step_s = float(np.median(wall[training]))
        waits_s = DELAYS * delay / len(rank.steps)
        if gap > BETWEEN_SHARE * step_s + BETWEEN_S + waits_s:
            faults.append(f"rank {rank.rank}: {gap:.4f} s between two steps of {step_s:.4f} s")
    good = "there is little time between two steps"
    return verdict_of("between-steps", faults, good, is_suspect=True)


def recompilations(attempt: AttemptRecords) -> Check:
    """Flags measured steps in which torch compiled a layer once more, which takes seconds."""
    faults = []
    for rank in attempt.ranks:
        steps = zip(rank.steps, rank.measured, strict=True)
        found = [step for step, counts in steps if counts and step.compilations]
        if found:
            first, times = found[0], sum(step.compilations or 0 for step in found)
            faults.append(
                f"rank {rank.header.rank}: torch compiled layers {times} times in {len(found)} "
                f"measured steps, the first {first.phase} step {first.step}"
            )
    good = "torch compiled nothing in a measured step"
    return verdict_of("recompiled", faults, good, is_suspect=True)

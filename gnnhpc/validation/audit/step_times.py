"""Checks of recorded times: they are possible, add up, and fit into the attempt. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np
import numpy.typing as npt

from gnnhpc.core.schedules import Action, stage_order
from gnnhpc.records.schema import Check, StepRecord
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
_SECONDS = ("wall_s", *_PARTS, "data_s", "sample_s", "gather_s", "recompute_s", "weights_s")
_OTHERS = ("start_s", "peak_rss_mib", "peak_device_mib", "steal_s", "run_delay_s", "cpu_s")
_SPAN_PARTS = {
    "forward": "forward_s",
    "backward": "backward_s",
    "weights": "backward_s",
    "allreduce": "allreduce_s",
    "optimizer": "optimizer_s",
}


def step_times(attempt: AttemptRecords) -> Check:
    """Times are not negative, parts add up to steps, and steps follow one another in the run."""
    faults = [
        f"rank {rank.rank}{fault}"
        for rank in attempt.ranks
        for fault in _impossible(rank, elapsed_s(attempt))
    ]
    return verdict_of("step times", faults, "parts add up to the steps, these fit into the run")


def _impossible(rank: RankRecords, elapsed: float) -> Iterator[str]:
    if not rank.steps:
        return
    wall, start = rank.column("wall_s"), rank.column("start_s")
    for name in (*_SECONDS, *_OTHERS):
        values = rank.column(name)
        known = np.array([getattr(step, name) is not None for step in rank.steps])
        least = -CLOCK_S if name == "wait_s" else 0.0
        for place, n in _first(rank, known & ~(np.isfinite(values) & (values >= least))):
            yield f"{place}: {name} is {values[n]}"
    parts = np.sum([rank.column(name) for name in _PARTS], axis=0)
    for place, n in _first(rank, np.abs(parts - wall) > ROUNDING_S):
        yield f"{place}: parts add up to {parts[n]:.6f} s of {wall[n]:.6f} s"
    for name in ("recompute_s", "weights_s"):
        longer = rank.column(name) > rank.column("backward_s") + ROUNDING_S
        for place, _ in _first(rank, longer):
            yield f"{place}: {name} is longer than the backward"
    early = np.zeros(len(wall), np.bool_)
    early[1:] = start[1:] < (start + wall)[:-1] - CLOCK_S
    for place, _ in _first(rank, early):
        yield f"{place}: it begins before the step before it has ended"
    if not start[-1] + wall[-1] <= elapsed + 1.0:
        yield f": steps end after {start[-1] + wall[-1]:.3f} s of an attempt of {elapsed:.3f} s"


def _first(rank: RankRecords, wrong: npt.NDArray[np.bool_]) -> list[tuple[str, int]]:
    """The place and number of the first step that is wrong; empty if none is."""
    return [(f", {_place(rank.steps[n])}", int(n)) for n in np.flatnonzero(wrong)[:1]]


def _place(step: StepRecord) -> str:
    return f"{step.phase} step {step.step}"


def elapsed_s(attempt: AttemptRecords) -> float:
    """Seconds from the start of the attempt to its result."""
    began, ended = (
        datetime.fromisoformat(text)
        for text in (attempt.result.started_at, attempt.result.ended_at)
    )
    return (ended - began).total_seconds()


def spans(attempt: AttemptRecords) -> Check:
    """Spans lie within their step and add up to its parts."""
    faults = []
    for rank in attempt.ranks:
        by_key = {(step.phase, step.step): step for step in rank.steps}
        for key, recorded in rank.spans.items():
            step = by_key.get(key)
            if step is None:
                faults.append(f"rank {rank.rank} has spans of {key[0]} step {key[1]}, but no step")
                continue
            place, sums = f"rank {rank.rank}, {_place(step)}", dict.fromkeys(_PARTS[:4], 0.0)
            outside = [
                s for s in recorded if not -CLOCK_S <= s.start_s <= s.end_s <= step.wall_s + CLOCK_S
            ]
            if outside:
                faults.append(f"{place}: a {outside[0].name} span is outside of the step")
                continue
            for span in recorded:
                if span.name in _SPAN_PARTS:
                    sums[_SPAN_PARTS[span.name]] += span.end_s - span.start_s
            for name, seconds in sums.items():
                value = getattr(step, name)
                if value is not None and abs(seconds - value) > ROUNDING_S * (1 + len(recorded)):
                    faults.append(f"{place}: spans add up to {seconds:.6f} s of {name} {value:.6f}")
    if attempt.result.experiment["spans"]:
        on_cpu = (rank for rank in attempt.ranks if rank.header.device == "cpu")
        faults += [f"rank {rank.rank} has no spans" for rank in on_cpu if not rank.spans]
    return verdict_of("spans", faults, "spans lie within the steps and add up to their parts")


def schedule(attempt: AttemptRecords) -> Check:
    """Spans of the native engine follow one another as the schedule orders its actions.

    An action without a span, such as the backward of a stage without parameters, is left out.
    """
    experiment, faults = attempt.result.experiment, []
    stages = len(attempt.ranks) // attempt.replicas
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
    return delay if np.isfinite(delay) else 0.5 * _total_s(rank)


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
        gap, step_s = (
            float(np.quantile(gaps, 0.2, method="lower")),
            float(np.median(wall[training])),
        )
        waits_s = DELAYS * delay / len(rank.steps)
        if gap > BETWEEN_SHARE * step_s + BETWEEN_S + waits_s:
            faults.append(f"rank {rank.rank}: {gap:.4f} s between two steps of {step_s:.4f} s")
    good = "there is little time between two steps"
    return verdict_of("between-steps", faults, good, fault="suspect")


def _total_s(rank: RankRecords) -> float:
    return float(rank.column("wall_s").sum())

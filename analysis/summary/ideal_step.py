"""Ideal step times: the schedule with each step's measured stage seconds, and no other cost.

Where gradients of weights are computed apart from those of inputs, both are placed separately.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.intervals import median
from gnnhpc.core.schedules import (
    SPLIT_BACKWARD,
    Action,
    Kind,
    ScheduleName,
    input_from,
    timeline,
    virtual_stage_number,
)

Seconds = NDArray[np.float64]
_SECONDS = ["forward_s", "backward_s", "weights_s"]
Shares = tuple[float, float, float]
"""Seconds of forwards, gradients of inputs and gradients of weights, of which the ratio matters."""

LEAST_SHARE = 0.05
"""Share of the backward; with less for gradients of weights, a stage waits as without the split."""


def has_split_backward(schedule: str, stages: int) -> bool:
    """Whether a pipeline has the schedule zero-bubble or zbv; a single stage waits for no other."""
    return schedule in SPLIT_BACKWARD and stages > 1


def shares_of(forward_s: float, backward_s: float, weights_s: float) -> Shares | None:
    """The shares, where `backward_s` includes `weights_s`; None where one of them is not known."""
    shares = forward_s, max(0.0, backward_s - weights_s), weights_s
    known = all(map(math.isfinite, shares))
    return shares if known and sum(shares) > 0.0 else None


class IdealStep(NamedTuple):
    """Seconds of the ideal of one cell's steps."""

    median: float
    """The median over steps with equal samples, without the shorter end of an epoch."""
    mean: float
    """The mean over all steps, like the mean step time."""


def ideal_steps(
    stage_times: pd.DataFrame, steps: pd.DataFrame, cells: pd.DataFrame
) -> dict[tuple[str, str], IdealStep]:
    """(cell, phase) -> the ideal of its kept steps, of the slowest replica.

    A cell that measures stages in profiled steps alone, as on a GPU, has the ideal of those. The
    ideal is that of each step, not that of each stage's median: where a machine is now fast and
    now slow, medians of parts do not add up to the median of the whole.
    """
    times = _counted(stage_times, steps)
    if times.empty:
        return {}
    columns = ["cell", "stages", "schedule", "microbatches", "virtual_stages"]
    plans = {
        str(cell): (int(stages), cast(ScheduleName, schedule), int(count), int(virtual))
        for cell, stages, schedule, count, virtual in cells[columns].itertuples(index=False)
    }
    place = ["cell", "stage", "virtual_stage"]
    numbered = times[place].drop_duplicates()
    numbers = []
    for cell, stage, virtual in numbered.itertuples(index=False):
        stages, schedule, *_ = plans[str(cell)]
        numbers.append(virtual_stage_number(schedule, stage, stages, virtual))
    times = times.merge(numbered.assign(number=numbers), on=place)
    times = times.sort_values(["cell", "phase", "replica", "number", "step"], kind="stable")
    found: dict[tuple[str, str], list[Seconds]] = {}
    even: dict[tuple[str, str], NDArray[np.bool_]] = {}
    for key, mine in times.groupby(["cell", "phase", "replica"], observed=True, sort=False):
        cell, phase = str(key[0]), str(key[1])
        stages, schedule, count, virtual = plans[cell]
        if len(mine) % (stages * virtual):
            continue
        # [virtual stages, steps, forward|backward|weights]; backward includes weights.
        tables = mine[_SECONDS].to_numpy().reshape(stages * virtual, -1, len(_SECONDS))
        if not has_split_backward(schedule, stages):
            tables[..., 2] = 0.0
        forward, backward, weights = np.moveaxis(tables, 2, 0) / count
        seconds = ideal_seconds(
            schedule,
            list(forward),
            list(backward - weights),
            count,
            weights=list(weights),
            virtual_stages=virtual,
            training=phase == "train",
        )
        found.setdefault((cell, phase), []).append(seconds)
        even[cell, phase] = ~mine["uneven"].to_numpy()[: tables.shape[1]]
    ideal = {}
    for which, replicas in found.items():
        slowest: Seconds = np.maximum.reduce(replicas)
        if np.isfinite(slowest).all():
            ideal[which] = IdealStep(median(slowest[even[which]]), float(slowest.mean()))
    return ideal


def _counted(stage_times: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The stage seconds of kept steps; of a cell and phase without any those of profiled steps."""
    keys = ["cell", "phase"]
    marks = steps[[*keys, "step", "kept", "profiled", "warmup", "uneven"]]
    times = stage_times.merge(marks, on=[*keys, "step"])
    some_kept = times.groupby(keys, observed=True)["kept"].transform("any")
    profiled = times["profiled"] & ~times["warmup"] & ~some_kept
    return times[times["kept"] | profiled]


def ideal_seconds(
    schedule: ScheduleName,
    forward: list[Seconds],
    backward: list[Seconds],
    microbatches: int,
    *,
    weights: list[Seconds] | None = None,
    virtual_stages: int = 1,
    training: bool,
) -> Seconds:
    """[steps]: the ideal of each step from a micro-batch's seconds [steps] in each virtual stage.

    As `gnnhpc.core.schedules.ideal_step_s` of one step, for all steps at once.
    """
    stages = len(forward) // virtual_stages
    none = [np.zeros_like(seconds) for seconds in forward]
    tables: dict[Kind, list[Seconds]] = {
        "forward": forward,
        "backward": backward,
        "weights": weights or none,
    }
    clock = none[:stages]
    done: dict[tuple[int, Action], Seconds] = {}
    for stage, action in _order(schedule, stages, microbatches, virtual_stages, training):
        needed = input_from(schedule, stage, stages, virtual_stages, action)
        start = clock[stage] if needed is None else np.maximum(clock[stage], done[needed])
        seconds = tables[action.kind][
            virtual_stage_number(schedule, stage, stages, action.virtual_stage)
        ]
        clock[stage] = done[stage, action] = start + seconds
    ended: Seconds = np.maximum.reduce(clock)
    return ended


@lru_cache
def _order(
    schedule: ScheduleName, stages: int, microbatches: int, virtual_stages: int, training: bool
) -> tuple[tuple[int, Action], ...]:
    """Stage and action of all, each after those that it waits for."""
    equal = list(itertools.repeat(1.0, stages * virtual_stages))
    slots = timeline(
        *(schedule, equal, equal, microbatches),
        weights_s=equal,
        virtual_stages=virtual_stages,
        training=training,
    )
    return tuple((slot.stage, slot.action) for slot in slots)

"""Ideal step times: the schedule with each step's measured stage seconds and no other cost."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.intervals import median
from analysis.stats.noise import cell_phase_slices
from gnnhpc.core.schedule import Kind, ScheduleName, timeline

Seconds = NDArray[np.float64]


class IdealStep(NamedTuple):
    """Seconds of the ideal of one cell's steps."""

    median: float
    mean: float


def ideal_steps(
    ranks: pd.DataFrame, steps: pd.DataFrame, cells: pd.DataFrame
) -> dict[tuple[str, str], IdealStep]:
    """(cell, phase) -> the ideal of the steps that count, of the slowest replica.

    The median is of steps of equal samples, without the uneven end of an epoch. The mean is of
    all, as of the seconds that it is held against.

    Of each step, not of each stage's median: where a machine is now fast and now slow, medians of
    parts do not add up to the median of the whole.
    """
    counted = steps.loc[steps["kept"], ["cell", "phase", "step", "uneven"]]
    even = _even_steps(counted)
    if len(counted) < len(steps):
        kept = pd.MultiIndex.from_frame(counted[["cell", "phase", "step"]])
        ranks = ranks[pd.MultiIndex.from_frame(ranks[["cell", "phase", "step"]]).isin(kept)]
    planned = zip(cells["cell"], cells["schedule"], cells["microbatches"], strict=True)
    plans: dict[str, tuple[ScheduleName, int]] = {c: (s, int(m)) for c, s, m in planned}
    cell, phase = ranks["cell"].to_numpy(), ranks["phase"].to_numpy()
    replica, stage = ranks["replica"].to_numpy(), ranks["stage"].to_numpy()
    forward, backward = ranks["forward_s"].to_numpy(), ranks["backward_s"].to_numpy()
    ideal = {}
    for part in cell_phase_slices(ranks):
        name, kind = str(cell[part.start]), str(phase[part.start])
        schedule, microbatches = plans[name]
        slowest: Seconds | None = None
        for one in np.unique(replica[part]):
            # Rows are in order of step and rank, so those of one stage are its steps in order.
            mine = [
                (replica[part] == one) & (stage[part] == number)
                for number in np.unique(stage[part][replica[part] == one])
            ]
            seconds = ideal_seconds(
                schedule,
                [forward[part][rows] / microbatches for rows in mine],
                [backward[part][rows] / microbatches for rows in mine],
                microbatches,
                training=kind == "train",
            )
            slowest = seconds if slowest is None else np.maximum(slowest, seconds)
        if slowest is not None and np.isfinite(slowest).all():
            ideal[name, kind] = IdealStep(median(slowest[even[name, kind]]), float(slowest.mean()))
    return ideal


def _even_steps(counted: pd.DataFrame) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """(cell, phase) -> which of its steps have as many samples as others."""
    cell, phase = counted["cell"].to_numpy(), counted["phase"].to_numpy()
    even = ~counted["uneven"].to_numpy()
    return {
        (str(cell[part.start]), str(phase[part.start])): even[part]
        for part in cell_phase_slices(counted)
    }


def ideal_seconds(
    schedule: ScheduleName,
    forward_s: list[Seconds],
    backward_s: list[Seconds],
    microbatches: int,
    *,
    training: bool,
) -> Seconds:
    """[steps]: the ideal of each, where a micro-batch takes `forward_s[stage]` [steps] on a stage.

    As `gnnhpc.core.schedule.ideal_step_s` of each step, for all steps together.
    """
    stages = len(forward_s)
    clock = [np.zeros_like(seconds) for seconds in forward_s]
    done: dict[tuple[int, Kind, int], Seconds] = {}
    for stage, kind, microbatch in _order(schedule, stages, microbatches, training):
        if kind == "forward":
            before = done[stage - 1, kind, microbatch] if stage else None
        elif stage == stages - 1:
            before = done[stage, "forward", microbatch]
        else:
            before = done[stage + 1, kind, microbatch]
        start = clock[stage] if before is None else np.maximum(clock[stage], before)
        clock[stage] = start + (forward_s if kind == "forward" else backward_s)[stage]
        done[stage, kind, microbatch] = clock[stage]
    ended: Seconds = np.maximum.reduce(clock)
    return ended


@lru_cache
def _order(
    schedule: ScheduleName, stages: int, microbatches: int, training: bool
) -> tuple[tuple[int, Kind, int], ...]:
    """Stage, kind and micro-batch of all actions, each after those that it waits for."""
    equal = [1.0] * stages
    slots = timeline(schedule, equal, equal, microbatches, training=training)
    return tuple((slot.stage, slot.action.kind, slot.action.microbatch) for slot in slots)

"""Ideal step times: the schedule with each step's measured stage seconds and no other cost.

Of a stage of several parts each takes its own seconds. Where gradients of weights are apart, a
backward is without them, and they are played by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.record_frames import TIMED_PARTS
from analysis.stats.intervals import median
from analysis.stats.noise import cell_phase_slices
from analysis.stats.split_backward import rows_with_weights_apart
from gnnhpc.core.schedule import (
    Action,
    Kind,
    ScheduleName,
    input_from,
    part_number,
    place_of_part,
    timeline,
)

Seconds = NDArray[np.float64]


class IdealStep(NamedTuple):
    """Seconds of the ideal of one cell's steps."""

    median: float
    mean: float


class _Plan(NamedTuple):
    schedule: ScheduleName
    microbatches: int
    parts: int
    split_backward: bool


_WAYS = ("forward_s", "backward_s")


class Passes(NamedTuple):
    """Seconds of a replica's steps, by the number of the part of the model."""

    forward: list[Seconds]
    backward: list[Seconds]
    weights: list[Seconds] | None = None
    """None where `backward` has them."""

    def of_microbatch(self, count: int) -> Passes:
        """Of one of `count`."""
        forward, backward = ([of / count for of in way] for way in (self.forward, self.backward))
        weights = None if self.weights is None else [of / count for of in self.weights]
        return Passes(forward, backward, weights)


def ideal_steps(
    ranks: pd.DataFrame, parts: pd.DataFrame, steps: pd.DataFrame, cells: pd.DataFrame
) -> dict[tuple[str, str], IdealStep]:
    """(cell, phase) -> the ideal of the steps that count, of the slowest replica.

    `ranks`, `parts`, `steps` and `cells` are a run's.

    The median is of steps of equal samples, without the uneven end of an epoch. The mean is of
    all, as of the seconds that it is held against.

    Of each step, not of each stage's median: where a machine is now fast and now slow, medians of
    parts do not add up to the median of the whole.
    """
    counted = steps.loc[steps["kept"], ["cell", "phase", "step", "uneven"]]
    even = _even_steps(counted)
    if len(counted) < len(steps):
        kept = pd.MultiIndex.from_frame(counted[["cell", "phase", "step"]])
        ranks, parts = (
            frame[pd.MultiIndex.from_frame(frame[["cell", "phase", "step"]]).isin(kept)]
            for frame in (ranks, parts)
        )
    planned = (cells[name] for name in ("cell", "schedule", "microbatches", "virtual_stages"))
    apart = map(bool, rows_with_weights_apart(cells))
    plans = {
        cell: _Plan(schedule, int(microbatches), int(of_stage), weights)
        for cell, schedule, microbatches, of_stage, weights in zip(*planned, apart, strict=True)
    }
    of_parts = dict(iter(parts.groupby(["cell", "phase"], observed=True)))
    cell, phase = ranks["cell"].to_numpy(), ranks["phase"].to_numpy()
    names = ("replica", "stage", TIMED_PARTS, *_WAYS, "weights_s")
    columns = {name: ranks[name].to_numpy() for name in names}
    ideal = {}
    for rows in cell_phase_slices(ranks):
        name, kind = str(cell[rows.start]), str(phase[rows.start])
        plan = plans[name]
        if plan.parts == 1:
            mine = {key: of[rows] for key, of in columns.items()}
            replicas = _passes_of_stages(mine, split_backward=plan.split_backward)
        elif (columns[TIMED_PARTS][rows] == plan.parts).all():
            replicas = _passes_of_parts(of_parts[name, kind], plan)
        else:
            # Only of cells that are not valid: records of valid ones are checked.
            continue
        seconds = [
            ideal_seconds(
                plan.schedule,
                passes.of_microbatch(plan.microbatches),
                plan.microbatches,
                parts=plan.parts,
                training=kind == "train",
            )
            for passes in replicas
        ]
        slowest: Seconds = np.maximum.reduce(seconds)
        if np.isfinite(slowest).all():
            ideal[name, kind] = IdealStep(median(slowest[even[name, kind]]), float(slowest.mean()))
    return ideal


def _passes_of_stages(
    columns: Mapping[str, NDArray[Any]], *, split_backward: bool
) -> Iterator[Passes]:
    """Of each replica, of one cell's and phase's records of steps."""
    replica, stage = columns["replica"], columns["stage"]
    for one in np.unique(replica):
        # Rows are in order of step and rank, so those of one stage are its steps in order.
        mine = [(replica == one) & (stage == n) for n in np.unique(stage[replica == one])]
        forward, backward = ([columns[way][rows] for rows in mine] for way in _WAYS)
        if not split_backward:
            yield Passes(forward, backward)
            continue
        weights = [columns["weights_s"][rows] for rows in mine]
        of_inputs = [both - later for both, later in zip(backward, weights, strict=True)]
        yield Passes(forward, of_inputs, weights)


def _passes_of_parts(records: pd.DataFrame, plan: _Plan) -> Iterator[Passes]:
    """Likewise of records of parts, each in the order of its steps."""
    for _, mine in records.groupby("replica"):
        of_place = dict(iter(mine.sort_values("step").groupby(["stage", "part"])))
        stages = len(of_place) // plan.parts
        places = [place_of_part(plan.schedule, n, stages) for n in range(len(of_place))]
        parts = [of_place[place] for place in places]
        forward, backward = ([part[way].to_numpy() for part in parts] for way in _WAYS)
        if not plan.split_backward:
            yield Passes(forward, backward)
            continue
        weights = [part["weights_s"].to_numpy() for part in parts]
        of_inputs = [both - later for both, later in zip(backward, weights, strict=True)]
        yield Passes(forward, of_inputs, weights)


def _even_steps(counted: pd.DataFrame) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """(cell, phase) -> which of its steps have as many samples as others."""
    cell, phase = counted["cell"].to_numpy(), counted["phase"].to_numpy()
    even = ~counted["uneven"].to_numpy()
    return {
        (str(cell[rows.start]), str(phase[rows.start])): even[rows]
        for rows in cell_phase_slices(counted)
    }


def ideal_seconds(
    schedule: ScheduleName,
    passes: Passes,
    microbatches: int,
    *,
    parts: int = 1,
    training: bool,
) -> Seconds:
    """[steps]: the ideal of each, where `passes` are a micro-batch's seconds [steps] in each part.

    As `gnnhpc.core.schedule.ideal_step_s` of each step, for all steps together.
    """
    stages = len(passes.forward) // parts
    none = [np.zeros_like(seconds) for seconds in passes.forward]
    tables: dict[Kind, list[Seconds]] = {
        "forward": passes.forward,
        "backward": passes.backward,
        "weights": none if passes.weights is None else passes.weights,
    }
    clock = none[:stages]
    done: dict[tuple[int, Action], Seconds] = {}
    for stage, action in _order(schedule, stages, microbatches, parts, training):
        needed = input_from(schedule, stage, stages, parts, action)
        start = clock[stage] if needed is None else np.maximum(clock[stage], done[needed])
        seconds = tables[action.kind][part_number(schedule, stage, stages, action.part)]
        clock[stage] = done[stage, action] = start + seconds
    ended: Seconds = np.maximum.reduce(clock)
    return ended


@lru_cache
def _order(
    schedule: ScheduleName, stages: int, microbatches: int, parts: int, training: bool
) -> tuple[tuple[int, Action], ...]:
    """Stage and action of all, each after those that it waits for."""
    equal = [1.0] * (stages * parts)
    slots = timeline(
        *(schedule, equal, equal, microbatches), weights_s=equal, parts=parts, training=training
    )
    return tuple((slot.stage, slot.action) for slot in slots)

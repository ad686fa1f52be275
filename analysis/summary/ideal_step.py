"""Ideal step times: the schedule with the measured stage seconds and no other cost."""

from __future__ import annotations

import math
from itertools import groupby

import pandas as pd

from gnnhpc.core.schedule import ScheduleName, ideal_step_s

STAGE_COLUMNS = ["cell", "phase", "replica", "stage", "forward_s", "backward_s"]


def stage_seconds(ranks: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Forward and backward seconds of each stage for a mini-batch: medians over kept steps."""
    counted = steps.loc[steps["kept"], ["cell", "phase", "step"]]
    if len(counted) < len(steps):
        kept = pd.MultiIndex.from_frame(counted)
        ranks = ranks[pd.MultiIndex.from_frame(ranks[["cell", "phase", "step"]]).isin(kept)]
    medians = ranks.groupby(STAGE_COLUMNS[:4], observed=True)[["forward_s", "backward_s"]].median()
    return medians.reset_index()


def ideal_steps(stages: pd.DataFrame, cells: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(cell, phase) -> seconds of the ideal step, of the slowest replica.

    `stages` is from `stage_seconds`, and sorted as there.
    """
    planned = zip(cells["cell"], cells["schedule"], cells["microbatches"], strict=True)
    plans: dict[str, tuple[ScheduleName, int]] = {c: (s, int(m)) for c, s, m in planned}
    ideal: dict[tuple[str, str], float] = {}
    columns = [stages[name].tolist() for name in STAGE_COLUMNS]
    for (cell, phase, _), part in groupby(zip(*columns, strict=True), key=lambda row: row[:3]):
        measured = list(part)
        schedule, microbatches = plans[cell]
        forward = [row[4] / microbatches for row in measured]
        backward = [row[5] / microbatches for row in measured]
        if not all(map(math.isfinite, (*forward, *backward))):
            continue
        seconds = ideal_step_s(schedule, forward, backward, microbatches, training=phase == "train")
        ideal[cell, phase] = max(seconds, ideal.get((cell, phase), 0.0))
    return ideal

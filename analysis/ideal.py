"""What a cell's step would take if its stages cost what was measured and all else were free."""

from __future__ import annotations

import math

import pandas as pd

from gnnhpc.schedule import ScheduleName, ideal_step_s

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
    """Seconds of the ideal step of each cell and phase; of replicas, the slowest one's."""
    plans: dict[str, tuple[ScheduleName, int]] = {
        cell: (schedule, int(microbatches))
        for cell, schedule, microbatches in cells[["cell", "schedule", "microbatches"]].itertuples(
            index=False
        )
    }
    ideal: dict[tuple[str, str], float] = {}
    for keys, part in stages.groupby(["cell", "phase", "replica"], observed=True):
        cell, phase = str(keys[0]), str(keys[1])
        schedule, microbatches = plans[cell]
        forward = (part["forward_s"] / microbatches).tolist()
        backward = (part["backward_s"] / microbatches).tolist()
        if not all(math.isfinite(seconds) for seconds in (*forward, *backward)):
            continue
        seconds = ideal_step_s(schedule, forward, backward, microbatches, training=phase == "train")
        ideal[cell, phase] = max(seconds, ideal.get((cell, phase), 0.0))
    return ideal

"""Steps of each rank in order, and steps over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.read_records import STEP_COLUMNS

_NO_METRICS = STEP_COLUMNS | {"cell", "rank", "stage", "replica", "host", "waited_s", "step_s"}
_OF_THE_SLOWEST = (
    *("cpu_s", "data_s", "sample_s", "gather_s", "recompute_s", "peak_rss_mib", "peak_device_mib"),
)
"""Columns of which a step has the largest value of its ranks."""


def rank_steps(placed: pd.DataFrame) -> pd.DataFrame:
    """Steps of ranks in order of cell, phase, step and rank, with `step_s` and `waited_s`.

    `step_s` is from barrier to barrier, with the wait for a sampled mini-batch before the first.
    `waited_s` is `wait_s`, and 0 for a cell of one rank, which waits for no other.
    """
    ranks = placed.sort_values(["cell", "phase", "step", "rank"], ignore_index=True)
    several = ranks["rank"].groupby(ranks["cell"], observed=True).transform("max") > 0
    ranks["waited_s"] = ranks["wait_s"].where(several, 0.0)
    sampled = ranks["sampled_edges"].notna()
    ranks["step_s"] = ranks["wall_s"] + ranks["data_s"].where(sampled, 0.0)
    return ranks


def steps_of_ranks(ranks: pd.DataFrame, world: NDArray[Any]) -> pd.DataFrame:
    """One row a mini-batch that all ranks recorded; `ranks` is sorted as `rank_steps` sorts it."""
    cell, phase = ranks["cell"].cat.codes.to_numpy(), ranks["phase"].cat.codes.to_numpy()
    step = ranks["step"].to_numpy()
    first = np.ones(len(ranks), bool)
    first[1:] = (np.diff(cell) != 0) | (np.diff(phase) != 0) | (np.diff(step) != 0)
    starts = np.flatnonzero(first)
    steps = ranks.iloc[starts].reset_index(drop=True)
    steps = steps[["cell", "phase", "step", "epoch", "warmup", "profiled"]].copy()

    def over(values: Any, how: np.ufunc) -> NDArray[Any]:
        array = np.asarray(values)
        return how.reduceat(array, starts) if starts.size else array[:0]

    recorded = np.diff(np.append(starts, len(ranks)))
    for name in ("wall_s", "step_s"):
        steps[name] = over(ranks[name], np.maximum)
    # All stages of a replica have the same samples, so that the first stage's are counted.
    first_stage = ranks["stage"].to_numpy() == 0
    for name in ("samples", "sampled_edges"):
        steps[name] = over(np.where(first_stage, ranks[name].to_numpy(), 0), np.add)
    with np.errstate(invalid="ignore", divide="ignore"):
        steps["bubble"] = over(ranks["waited_s"], np.add) / over(ranks["step_s"], np.add)
    # Averages over ranks, so that these seconds and those of sampling add up to the step.
    passes = ranks["forward_s"] + ranks["backward_s"]
    for name, seconds in (
        ("forwards_s", ranks["forward_s"]),
        ("passes_s", passes),
        ("weights_s", ranks["weights_s"]),
        ("compute_s", passes + ranks["optimizer_s"]),
        ("allreduce_s", ranks["allreduce_s"]),
        ("outside_s", ranks["wait_s"]),
    ):
        steps[name] = over(seconds, np.add) / recorded
    for name in _OF_THE_SLOWEST:
        steps[name] = over(ranks[name], np.fmax)
    metrics = [name for name in ranks.columns if name not in _NO_METRICS]
    for name in ("loss", *metrics):
        steps[name] = over(ranks[name], np.fmax)
    whole = recorded == world[steps["cell"].cat.codes.to_numpy()]
    return steps if whole.all() else steps[whole].reset_index(drop=True)

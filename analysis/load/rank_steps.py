"""Steps of each rank in order, and steps over all ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy.typing import NDArray

from analysis.load.read_records import STEP_COLUMNS

_STEP = ["cell", "phase", "step"]
_NO_METRICS = STEP_COLUMNS | {"cell", "rank", "stage", "replica", "host", "waited_s", "step_s"}
_OF_THE_SLOWEST = [
    *("wall_s", "step_s", "cpu_s", "data_s", "sample_s", "gather_s", "recompute_s"),
    *("peak_rss_mib", "peak_device_mib", "loss"),
]
"""Columns of which a step has the largest value of its ranks, as it has of metrics."""


def rank_steps(placed: pd.DataFrame) -> pd.DataFrame:
    """Steps of ranks in order of cell, phase, step and rank, with `step_s` and `waited_s`.

    `step_s` is from barrier to barrier, with the wait for a sampled mini-batch before the first.
    `waited_s` is `wait_s`, and 0 for a cell of one rank, which waits for no other.
    """
    ranks = placed.sort_values([*_STEP, "rank"], ignore_index=True)
    several = ranks["rank"].groupby(ranks["cell"], observed=True).transform("max") > 0
    ranks["waited_s"] = ranks["wait_s"].where(several, 0.0)
    sampled = ranks["sampled_edges"].notna()
    ranks["step_s"] = ranks["wall_s"] + ranks["data_s"].where(sampled, 0.0)
    return ranks


def steps_of_ranks(ranks: pd.DataFrame, world: NDArray[Any]) -> pd.DataFrame:
    """One row a mini-batch that all ranks recorded, `world` of each cell, in their order."""
    passes = ranks["forward_s"] + ranks["backward_s"]
    parts = {
        "forwards_s": ranks["forward_s"],
        "passes_s": passes,
        "weights_s": ranks["weights_s"],
        "compute_s": passes + ranks["optimizer_s"],
        "allreduce_s": ranks["allreduce_s"],
        "outside_s": ranks["wait_s"],
    }
    metrics = [name for name in ranks.columns if name not in _NO_METRICS]
    grouped = ranks.assign(**parts).groupby(_STEP, observed=True)
    # All stages of a replica have the same samples, so that the first stage's are counted.
    first = ranks[ranks["stage"] == 0].groupby(_STEP, observed=True)[["samples", "sampled_edges"]]
    rank_seconds = grouped[["waited_s", "step_s"]].sum(min_count=1)
    steps = pd.concat(
        [
            grouped[["epoch", "warmup", "profiled"]].first(),
            grouped[[*_OF_THE_SLOWEST, *metrics]].max(),
            first.sum(min_count=1),
            (rank_seconds["waited_s"] / rank_seconds["step_s"]).rename("bubble"),
            # Averages over ranks, so that these seconds and those of sampling add up to the step.
            grouped[list(parts)].mean(),
        ],
        axis=1,
    )
    recorded = grouped.size().to_numpy()
    found: pd.DataFrame = steps.reset_index()
    found = found[recorded == world[found["cell"].cat.codes]]
    return found.reset_index(drop=True)

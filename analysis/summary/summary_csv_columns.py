"""The columns of summary.csv: those that scripts rely on, of settings, and of what is learnt."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analysis.statistics.intervals import finite_values, interval_of_shares, t_bounds

COLUMN_MEANINGS: Final[dict[str, str]] = {
    "model": "The model's name, or its label.",
    "data": "The data set.",
    "layout": "`seq`, `pp<S>`, `dp<R>` or `dp<R>-pp<S>`.",
    "stages": "S, the stages of a pipeline.",
    "replicas": "R, the replicas of the pipeline.",
    "microbatches": "M, the micro-batches of a mini-batch and replica.",
    "phase": "`train` or `test`.",
    "n": "Steps that count: without warm-up and profiled steps, of all valid repeats.",
    "mean_s": "Mean seconds of a step.",
    "std_s": "Standard deviation of the steps, in seconds.",
    "min_s": "Seconds of the shortest step.",
    "max_s": "Seconds of the longest step.",
    "median_s": "Median seconds of a step.",
    "samples_per_s": "Samples of all replicas over the mean step time.",
    "speedup": "Samples a second over those of the baseline.",
    "speedup_low": "Lower end of the 95 % interval of the speedup, over repeats.",
    "speedup_high": "Upper end of the 95 % interval of the speedup, over repeats.",
    "bound": "The highest speedup of balanced stages: R*S*M / (M + (S-1)/V).",
    "ideal_step_s": "Seconds of the step that the measured costs of the stages give under the "
    "schedule, if nothing else took time.",
    "efficiency": "Ideal step time over measured step time.",
    "bubble": "Share of rank-time in which ranks wait for other ranks.",
    "valid": "Whether a valid cell was measured and no speedup exceeds its bound without a cause.",
    "flags": "Names of the checks that flagged cells of this row, and how many cells.",
}
CONTRACT_COLUMNS = tuple(COLUMN_MEANINGS)
"""The first columns of summary.csv, in this order: scripts rely on them. Others follow."""
KEY_COLUMNS = ("model", "data", "layout", "microbatches")
VARIANT_COLUMNS = (
    *("implementation", "batch_size", "schedule", "virtual_stages", "chunks", "batchnorm"),
)
"""Settings that are always columns; other settings are only where they vary."""
SAMPLING_COLUMNS = ("sampler", "semantics", "fanouts", "workers")
"""Settings that are always columns of a run with sampled cells."""
DROPPED_COLUMNS = ("warmup_dropped", "profiled_dropped")
"""Steps that do not count, by reason; with `n` they add up to the recorded steps."""


def is_share(metric: str) -> bool:
    """Whether a metric's values are from 0 to 1, the more the better: `test_accuracy`, and of links
    `val_auc`, `test_mrr`, `test_hits@10`."""
    return metric.endswith(("accuracy", "_auc", "_mrr")) or "_hits@" in metric


def learnt_columns(used: pd.DataFrame) -> dict[str, float | None]:
    """Mean of each last loss and share of the cells that count, and its interval over seeds.

    Repeats of one seed learn the same, so each seed is one observation; fewer than two have no
    interval. A loss is held to be normal; the others are shares, from 0 to 1.
    """
    found: dict[str, float | None] = {}
    for name in map(str, used.columns):
        if name.startswith(("train_", "val_", "test_")) and (
            name.endswith("_loss") or is_share(name)
        ):
            values = used[name].astype(float)
            of_seeds = finite_values(values.groupby(used["seed"]).mean())
            low = high = None
            if of_seeds.size > 1 and is_share(name):
                interval = interval_of_shares(of_seeds)
                low, high = interval.low, interval.high
            elif of_seeds.size > 1:
                low, high = map(float, t_bounds(of_seeds))
            found |= {name: values.mean(), f"{name}_low": low, f"{name}_high": high}
    return found

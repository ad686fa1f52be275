"""What a row of the summary has learnt: losses, accuracies, ranks of links; over seeds."""

from __future__ import annotations

import pandas as pd

from analysis.statistics.intervals import interval_of_shares, t_bounds

_SPLITS = ("train_", "val_", "test_")


def is_share(metric: str) -> bool:
    """Whether a metric's values are from 0 to 1, the more the better: `test_accuracy`, and of links
    `val_auc`, `test_mrr`, `test_hits@10`."""
    return metric.endswith(("accuracy", "_auc", "_mrr")) or "_hits@" in metric


def learnt_columns(used: pd.DataFrame) -> dict[str, float | None]:
    """Mean of each last loss and share of the cells that count, and its interval.

    Repeats of one seed learn the same, so each seed is one observation; fewer than two have no
    interval. A loss is held to be normal; the others are shares, from 0 to 1.
    """
    names = [
        name
        for name in map(str, used.columns)
        if name.startswith(_SPLITS) and (name.endswith("_loss") or is_share(name))
    ]
    found: dict[str, float | None] = {}
    for name in names:
        by_seed = used[name].astype(float).groupby(used["seed"]).mean().dropna().to_numpy()
        found |= {name: used[name].astype(float).mean(), f"{name}_low": None, f"{name}_high": None}
        if by_seed.size < 2:
            continue
        if is_share(name):
            interval = interval_of_shares(by_seed)
            found |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        else:
            low, high = t_bounds(by_seed)
            found |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return found

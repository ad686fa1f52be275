"""Last losses and accuracies of a row of the summary, with intervals over seeds."""

from __future__ import annotations

import pandas as pd

from analysis.stats.intervals import interval_of_shares, t_bounds


def learnt_columns(used: pd.DataFrame) -> dict[str, float | None]:
    """Mean of each last loss and accuracy of the cells that count, and its interval.

    Repeats of one seed learn the same, so each seed is one observation; fewer than two have no
    interval. A loss is held to be normal, an accuracy is a share.
    """
    names = [
        name
        for name in used.columns
        if name.startswith(("train_", "val_", "test_")) and name.endswith(("_loss", "_accuracy"))
    ]
    found: dict[str, float | None] = {}
    for name in names:
        by_seed = used[name].astype(float).groupby(used["seed"]).mean().dropna().to_numpy()
        found |= {name: used[name].astype(float).mean(), f"{name}_low": None, f"{name}_high": None}
        if by_seed.size < 2:
            continue
        if name.endswith("_accuracy"):
            interval = interval_of_shares(by_seed)
            found |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        else:
            low, high = t_bounds(by_seed)
            found |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return found

"""Seconds of an epoch of nodes or graphs: measured whole, or extrapolated from fewer steps."""

from __future__ import annotations

import pandas as pd

_COLUMNS = ["cell", "phase", "epoch_s", "whole_epochs"]


def epoch_frame(steps: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """A row a cell of which it is known, in training: mean seconds of its whole epochs, how many.

    Whole are epochs all of whose steps count, so not one that begins with warm-up. Of a cell
    without any, the seconds are those of as many samples as an epoch has, at the pace of the steps
    that count.
    """
    if "steps_per_epoch" not in cells:
        return pd.DataFrame(columns=_COLUMNS).astype({"epoch_s": float, "whole_epochs": float})
    planned = cells[["cell", "steps_per_epoch", "train_samples"]].dropna()
    kept = steps[steps["kept"] & (steps["phase"] == "train")].merge(planned, on="cell")
    by_epoch = kept.groupby(["cell", "epoch"], observed=True).agg(
        seconds=("step_s", "sum"), count=("step_s", "size"), whole=("steps_per_epoch", "first")
    )
    whole = by_epoch[by_epoch["count"] == by_epoch["whole"]]
    measured = whole.groupby(level="cell", observed=True)["seconds"].agg(["mean", "size"])
    by_cell = kept.groupby("cell", observed=True).agg(
        seconds=("step_s", "sum"), samples=("samples", "sum"), all=("train_samples", "first")
    )
    at_this_pace = by_cell["seconds"] / by_cell["samples"] * by_cell["all"]
    measured = measured.reindex(by_cell.index)
    return pd.DataFrame(
        {
            "cell": by_cell.index,
            "phase": "train",
            "epoch_s": measured["mean"].fillna(at_this_pace).to_numpy(dtype=float),
            "whole_epochs": measured["size"].fillna(0).to_numpy(dtype=float),
        }
    )

"""What each cell measured in each phase: parts of a step, ideal step, epochs, memory."""

from __future__ import annotations

import pandas as pd

from analysis.load.run_data import RunData
from analysis.summary.ideal_step import ideal_steps

_AVERAGED = (
    *("data_s", "sample_s", "gather_s", "compute_s", "allreduce_s", "recompute_s"),
    *("forwards_s", "passes_s", "weights_s", "outside_s"),
)
"""Columns of steps of which a cell has the mean: of its kept steps, or where only profiled steps
have any, as seconds of stages on a GPU, of those."""
_EPOCH_COLUMNS = ["cell", "phase", "epoch_s", "whole_epochs"]


def cell_phase_frame(run: RunData) -> pd.DataFrame:
    """`run.phases` with samples a step, bubble, median and ideal step, parts of a step, memory."""
    keys = ["cell", "phase"]
    kept = run.steps[run.steps["kept"]]
    grouped = kept.groupby(keys, observed=True)
    even = kept[~kept["uneven"]].groupby(keys, observed=True)
    edges = grouped[["step_s", "sampled_edges"]].sum(min_count=1)
    measured = pd.DataFrame(
        {
            "samples": grouped["samples"].mean(),
            "median_step_s": even["step_s"].median(),
            **_parts_of_steps(run.steps),
            "sampled_edges_per_s": edges["sampled_edges"] / edges["step_s"],
            "peak_rss_mib": grouped["peak_rss_mib"].max(),
            "peak_device_mib": grouped["peak_device_mib"].max(),
            "peak_host_mib": _peak_of_hosts(run),
        }
    )
    frame = run.phases.merge(measured.reset_index(), on=keys, how="left")
    ideal = ideal_steps(run.stage_times, run.steps, run.cells)
    frame = frame.merge(epoch_frame(run.steps, run.cells), on=keys, how="left")
    found = [ideal.get(key) for key in zip(frame["cell"], frame["phase"], strict=True)]
    frame["ideal_step_s"] = [None if one is None else one.median for one in found]
    frame["ideal_mean_s"] = [None if one is None else one.mean for one in found]
    unknown = ["bubble", "ideal_step_s", "ideal_mean_s", "recompute_s"]
    unknown += ["forwards_s", "passes_s", "outside_s"]
    frame.loc[frame["cell"].isin(timed_as_a_whole(run)), unknown] = None
    return frame


def _parts_of_steps(steps: pd.DataFrame) -> dict[str, pd.Series[float]]:
    """The bubble and the means of `_AVERAGED`, by cell and phase."""
    keys = ["cell", "phase"]
    waited = steps.assign(waited=steps["bubble"] * steps["step_s"])
    kept = waited[waited["kept"]]
    profiled = waited[waited["profiled"] & ~waited["warmup"]]
    columns = [*_AVERAGED, "waited"]
    means = [part.groupby(keys, observed=True)[columns].mean() for part in (kept, profiled)]
    both = means[0].combine_first(means[1])
    seconds = kept.groupby(keys, observed=True)["step_s"].mean()
    of_profiled = profiled.groupby(keys, observed=True)["step_s"].mean()
    base = seconds.where(means[0]["waited"].notna(), of_profiled)
    return {"bubble": both["waited"] / base, **{name: both[name] for name in _AVERAGED}}


def timed_as_a_whole(run: RunData) -> set[str]:
    """The cells whose stages compute at the same time in one process, so that none has seconds.

    They are those of torchgpipe on several devices: neither an ideal step nor waits follow.
    """
    cells = run.cells
    if cells.empty:
        return set()
    held = cells.loc[(cells["engine"] == "torchgpipe") & (cells["stages"] > 1), "cell"]
    return {str(cell) for cell in held} - {str(cell) for cell in run.layer_times["cell"].unique()}


def _peak_of_hosts(run: RunData) -> pd.Series[float]:
    """The largest memory of a host's ranks together, MiB; shared memory counts for each rank."""
    keys = ["cell", "phase"]
    of_ranks = run.ranks.groupby([*keys, "host", "rank"], observed=True)["peak_rss_mib"].max()
    of_hosts = of_ranks.groupby(level=[*keys, "host"], observed=True).sum(min_count=1)
    return of_hosts.groupby(level=keys, observed=True).max()


def epoch_frame(steps: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """A row a cell of which it is known, in training: mean seconds of its whole epochs, how many.

    Whole are epochs all of whose steps count, so not one that begins with warm-up. Of a cell
    without any, the seconds are those of as many samples as an epoch has, at the pace of the steps
    that count.
    """
    if "steps_per_epoch" not in cells:
        return pd.DataFrame(columns=_EPOCH_COLUMNS).astype(
            {"epoch_s": float, "whole_epochs": float}
        )
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

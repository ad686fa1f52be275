"""What each cell measured in each phase: parts of a step, ideal step, epochs, memory.

The ideal step is the schedule with each step's measured stage seconds, and no other cost. Where
gradients of weights are computed apart from those of inputs, both are placed separately.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.load.run_data import RunData
from gnnhpc.core.schedules import SPLIT_BACKWARD, place_of_virtual_stage, timeline

_PLAN = ["schedule", "stages", "microbatches", "virtual_stages"]
_SECONDS = ["forward_s", "backward_s", "weights_s"]
_KEYS = ["cell", "phase"]
_AVERAGED = [
    *("data_s", "sample_s", "gather_s", "compute_s", "allreduce_s", "recompute_s"),
    *("forwards_s", "passes_s", "weights_s", "outside_s", "waited", "of"),
]
"""Columns of steps of which a cell has the mean: of its kept steps, or where only profiled steps
have any, as seconds of stages on a GPU, of those."""
_OF_STAGES = [
    *("bubble", "ideal_step_s", "ideal_mean_s", "efficiency", "recompute_s", "forwards_s"),
    *("passes_s", "outside_s"),
]
"""Columns that follow from seconds of stages."""


def cell_phase_frame(run: RunData) -> pd.DataFrame:
    """`run.phases` with samples a step, bubble, median and ideal step, parts of a step, memory.

    `efficiency` is the ideal over the measured step, both medians over the cell's steps.
    """
    kept = run.steps[run.steps["kept"]]
    grouped = kept.groupby(_KEYS, observed=True)
    parts = _parts_of_steps(run.steps)
    sums = grouped[["step_s", "sampled_edges"]].sum(min_count=1)
    measured = parts.assign(
        bubble=parts["waited"] / parts["of"],
        samples=grouped["samples"].mean(),
        median_step_s=kept[~kept["uneven"]].groupby(_KEYS, observed=True)["step_s"].median(),
        sampled_edges_per_s=sums["sampled_edges"] / sums["step_s"],
        peak_rss_mib=grouped["peak_rss_mib"].max(),
        peak_device_mib=grouped["peak_device_mib"].max(),
        peak_host_mib=_peak_of_hosts(run),
    )
    frame = run.phases.merge(measured.reset_index(), on=_KEYS, how="left")
    for more in (_ideal_steps(run.stage_times, run.steps, run.cells), _epochs(run)):
        frame = frame.merge(more, on=_KEYS, how="left")
    frame["efficiency"] = frame["ideal_step_s"] / frame["median_step_s"]
    frame.loc[frame["cell"].isin(timed_as_a_whole(run)), _OF_STAGES] = None
    return frame


def _parts_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The means of `_AVERAGED`, by cell and phase; `waited` is seconds of the steps `of`."""
    steps = steps.assign(
        waited=steps["bubble"] * steps["step_s"], of=steps["step_s"].where(steps["bubble"].notna())
    )
    kept, profiled = (
        part.groupby(_KEYS, observed=True)[_AVERAGED].mean()
        for part in (steps[steps["kept"]], steps[steps["profiled"] & ~steps["warmup"]])
    )
    return kept.combine_first(profiled)


def timed_as_a_whole(run: RunData) -> set[str]:
    """The cells whose stages compute at the same time in one process, so that none has seconds.

    They are those of torchgpipe on several devices: neither an ideal step nor waits follow.
    """
    held = run.cells[(run.cells["engine"] == "torchgpipe") & (run.cells["stages"] > 1)]
    return set(map(str, held["cell"])) - set(map(str, run.layer_times["cell"].unique()))


def _peak_of_hosts(run: RunData) -> pd.Series[float]:
    """The largest memory of a host's ranks together, MiB; shared memory counts for each rank."""
    of_ranks = run.ranks.groupby([*_KEYS, "host", "rank"], observed=True)["peak_rss_mib"].max()
    of_hosts = of_ranks.groupby(level=[*_KEYS, "host"], observed=True).sum(min_count=1)
    return of_hosts.groupby(level=_KEYS, observed=True).max()


def _epochs(run: RunData) -> pd.DataFrame:
    """A row a cell of which it is known, in training: mean seconds of its whole epochs, how many.

    Whole are epochs all of whose steps count, so not one that begins with warm-up. Of a cell
    without any, the seconds are those of as many samples as an epoch has, at the pace of the steps
    that count.
    """
    planned = run.cells.reindex(columns=["cell", "steps_per_epoch", "train_samples"]).dropna()
    kept = run.steps[run.steps["kept"] & (run.steps["phase"] == "train")].merge(planned, on="cell")
    by_epoch = kept.groupby(["cell", "epoch"], observed=True).agg(
        seconds=("step_s", "sum"), count=("step_s", "size"), whole=("steps_per_epoch", "first")
    )
    whole = by_epoch[by_epoch["count"] == by_epoch["whole"]].groupby(level="cell", observed=True)
    by_cell = kept.groupby("cell", observed=True).agg(
        seconds=("step_s", "sum"), samples=("samples", "sum"), all=("train_samples", "first")
    )
    at_this_pace = by_cell["seconds"] / by_cell["samples"] * by_cell["all"]
    epochs = by_cell.assign(
        phase="train",
        epoch_s=whole["seconds"].mean().reindex(by_cell.index).fillna(at_this_pace),
        whole_epochs=whole.size().reindex(by_cell.index, fill_value=0),
    )
    return epochs[["phase", "epoch_s", "whole_epochs"]].reset_index()


def has_split_backward(schedule: str, stages: int) -> bool:
    """Whether a pipeline has the schedule zero-bubble or zbv; a single stage waits for no other."""
    return schedule in SPLIT_BACKWARD and stages > 1


def _ideal_steps(
    stage_times: pd.DataFrame, steps: pd.DataFrame, cells: pd.DataFrame
) -> pd.DataFrame:
    """A row a cell and phase of which it is known: `ideal_step_s` and `ideal_mean_s`.

    They are the median over the kept steps of equal samples and the mean over all kept steps, of
    the slowest replica. A cell that measures stages in profiled steps alone, as on a GPU, has the
    ideal of those. The ideal is that of each step, not that of each stage's median: where a machine
    is now fast and now slow, medians of parts do not add up to the median of the whole.
    """
    times = _counted(stage_times, steps).merge(cells[["cell", *_PLAN]], on="cell")
    found = [times[[*_KEYS, "step", "uneven"]].head(0).assign(seconds=0.0)]
    place = ["cell", "step", "uneven", "replica", "virtual_stage", "stage"]
    plans: Any = times.groupby(["phase", *_PLAN], observed=True)
    for (phase, schedule, stages, count, virtual), mine in plans:
        tables = mine.set_index(place)[_SECONDS].unstack(place[-2:]) / count
        if len(tables.columns) != len(_SECONDS) * stages * virtual:
            continue
        if not has_split_backward(schedule, stages):
            tables.loc[:, "weights_s"] = 0.0
        # Recorded seconds of backward include those of the gradients of weights.
        tables["backward_s"] -= tables["weights_s"]
        places = [place_of_virtual_stage(schedule, n, stages) for n in range(stages * virtual)]
        forward, backward, weights = (
            [tables[name, v, stage].to_numpy() for stage, v in places] for name in _SECONDS
        )
        slots = timeline(
            *(schedule, forward, backward, count),
            weights_s=weights,
            virtual_stages=virtual,
            training=phase == "train",
            later=np.maximum,
        )
        ideal = np.maximum.reduce([slot.end_s for slot in slots])
        found.append(tables.index.to_frame(index=False).assign(phase=phase, seconds=ideal))
    every = pd.concat(found)
    known = every.groupby(_KEYS, observed=True)["seconds"].transform(lambda s: s.notna().all())
    of_steps = every[known.astype(bool)].groupby([*_KEYS, "step", "uneven"], observed=True)
    slowest = of_steps["seconds"].max().reset_index()
    even = slowest[~slowest["uneven"].astype(bool)]
    both = {
        "ideal_step_s": even.groupby(_KEYS, observed=True)["seconds"].median(),
        "ideal_mean_s": slowest.groupby(_KEYS, observed=True)["seconds"].mean(),
    }
    return pd.DataFrame(both).reset_index()


def _counted(stage_times: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The stage seconds of kept steps; of a cell and phase without any those of profiled steps."""
    marks = steps[[*_KEYS, "step", "kept", "profiled", "warmup", "uneven"]]
    times = stage_times.merge(marks, on=[*_KEYS, "step"])
    some_kept = times.groupby(_KEYS, observed=True)["kept"].transform("any")
    profiled = times["profiled"] & ~times["warmup"] & ~some_kept
    return times[times["kept"] | profiled]

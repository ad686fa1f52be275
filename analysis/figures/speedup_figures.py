"""Figures of speed: against micro-batches and against ranks, with memory.

Each function takes the cells of a model on a data set and returns a figure, or the reason why the
run has no data for it. Docstrings of figures are their captions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.colours_and_style import layout_styles
from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import series_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speedup(group: ModelOnData) -> Figure | str:
    """Speedup in samples a second of training over the baseline that the axis names, with intervals
    over runs; an arrow shows that an interval goes on. Ticks are the bound: R·S·M/(M+(S-1)/V) with
    V virtual stages, or the order of actions for zero-bubble and zbv, over that of the baseline. A
    hollow marker lies above its bound, which its layers' seconds do not explain; it is not valid.
    """
    rows = group.training.dropna(subset=["speedup"])
    if rows["effect"].isna().all():
        return "no valid baseline, or nothing to compare with it"
    label = f"speedup over {group.baseline} (ratio)"
    return _against_microbatches(group, rows, "speedup", label, ("bound", "bound"))


def efficiency(group: ModelOnData) -> Figure | str:
    """Ideal step time (the schedule with the measured forward and backward seconds of each stage,
    and nothing else) over the measured step time.
    """
    rows = group.training.dropna(subset=["efficiency"])
    if rows.empty:
        return "no forward and backward seconds in the records"
    rows, label = rows.assign(ideal=1.0), "efficiency (ideal / step time)"
    return _against_microbatches(group, rows, "efficiency", label, ("ideal", "ideal"), zero=False)


def bubble(group: ModelOnData) -> Figure | str:
    """Share of rank-time spent waiting in a training step, with what lies between spans of work
    (one rank waits for nobody); ticks are what equal stages must wait, (S-1)/(V·M+S-1) with V
    virtual stages; of zero-bubble and zbv with the measured ratio of forwards, gradients of inputs
    and gradients of weights.
    """
    rows = group.training.dropna(subset=["bubble"])
    if rows.empty:
        return "no waiting seconds in the records"
    if (rows["stages"] * rows["replicas"]).max() == 1:
        return "one rank alone, which waits for nobody"
    shares = ("bubble", "bubble_low", "bubble_high", "balanced_bubble")
    rows = rows.assign(**{name: 100 * rows[name] for name in shares})
    reference = ("balanced_bubble", "equal stages")
    return _against_microbatches(group, rows, "bubble", "waiting (% of rank-time)", reference)


def _against_microbatches(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    label: str,
    reference: tuple[str, str],
    *,
    zero: bool = True,
) -> Figure:
    """A line a layout, and a column that is drawn as ticks, with its name.

    Where no layout of several ranks has several numbers of micro-batches the axis is the layout.
    """
    rows = tidy(rows, column).assign(series=rows["layout"], reference=rows[reference[0]])
    counts: list[Any] = sorted(set(rows["microbatches"]))
    of_several = rows[rows["stages"] * rows["replicas"] > 1].groupby("layout")["microbatches"]
    ticks, places, styles = counts, rows["microbatches"], layout_styles(rows["layout"])
    across = f"micro-batches a {'replica' if group.graphs else 'mini-batch'}"
    if (of_several.nunique() == 1).all():
        across = "layout (m: micro-batches)"
        places = rows["layout"] + "\nm " + rows["microbatches"].astype(str)
        ticks = list(dict.fromkeys(places.sort_index()))
        styles = {n: {**style, "ls": "none", "label": f"_{n}"} for n, style in styles.items()}
    return series_figure(
        group,
        rows.assign(x=places),
        (across, label),
        styles=styles,
        ticks=ticks,
        zero=zero,
        reference=reference[1],
    )


def strong_scaling(group: ModelOnData) -> Figure | str:
    """Speedup, and speedup over ranks, of layouts that share the baseline's samples a step; of each
    layout the fastest configuration. Ticks are the ideal.
    """
    return _against_ranks(group, weak=False)


def weak_scaling(group: ModelOnData) -> Figure | str:
    """Speedup of samples a second, and speedup over ranks, of layouts in which each replica has the
    baseline's mini-batch; of each layout the fastest configuration. Ticks are the ideal.
    """
    return _against_ranks(group, weak=True)


def _against_ranks(group: ModelOnData, *, weak: bool) -> Figure | str:
    """The configuration with the highest speedup of each layout, as two panels."""
    rows = group.training.dropna(subset=["speedup"])
    rows = rows.assign(ranks=rows["stages"] * rows["replicas"], series=rows["layout"])
    base = rows[rows["effect"].isna()].head(1)
    if base.empty:
        return "no valid baseline to compare with"
    first = base.iloc[0]
    # A graph is one mini-batch, which all replicas share.
    samples = rows["batch_size"].astype(float) * rows["replicas"]
    kept = samples.isna() | (samples == first["batch_size"] * first["replicas"])
    if weak:
        kept = (rows["batch_size"] == first["batch_size"]) & (rows["replicas"] > first["replicas"])
        kept |= rows.index.isin(base.index)
    best = rows[kept].sort_values("speedup", ascending=False).drop_duplicates("layout")
    if best["ranks"].nunique() < 2:
        return f"one number of ranks alone with equal samples a {'replica' if weak else 'step'}"
    share = first["ranks"] / best["ranks"]
    best = tidy(best.assign(x=best["ranks"], reference=1.0 / share), "speedup")
    ends = ("y", "low", "high", "reference")
    shares = best.assign(**{end: best[end] * share for end in ends})
    title = f"speedup over {group.baseline} (ratio)"
    return series_figure(
        group,
        best,
        ("ranks", ""),
        styles=layout_styles(best["layout"], ls="none"),
        ticks=sorted(set(best["ranks"])),
        reference="ideal",
        panels=((title, best), ("efficiency (speedup / ranks)", shares)),
    )


def memory(group: ModelOnData) -> Figure | str:
    """The most memory that each rank used, the ranks of a layout in order, mean and range over
    runs, with the most micro-batches that the layout was run with.
    """
    column, label = "peak_rss_mib", "peak memory of a rank (MiB)"
    if group.ranks["peak_device_mib"].notna().any():
        column, label = "peak_device_mib", "peak GPU memory of a rank (MiB)"
    ranks = group.ranks.dropna(subset=[column])
    if ranks.empty:
        return "no memory in the records"
    by_cell = ranks.groupby(["cell", "rank"], observed=True)[column].max().reset_index()
    keys = ["layout", *group.variants]
    rows = by_cell.merge(group.cells[["cell", "microbatches", *keys]], on="cell")
    most = rows.groupby(keys, dropna=False)["microbatches"].transform("max")
    found = rows[rows["microbatches"] == most].groupby([*keys, "rank"], dropna=False)[column]
    points = found.agg(y="mean", low="min", high="max").reset_index()
    points = points.assign(series=points["layout"], x=points["layout"])
    styles = layout_styles(points["layout"], ls="none")
    return series_figure(group, points, ("layout", label), styles=styles, ticks=list(styles))

"""Figures of speed: against micro-batches and against ranks, with memory.

Each function takes the cells of a model on a data set and returns a figure, or the reason why the
run has no data for it. Docstrings of figures are their captions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    add_legend,
    axis_limits,
    count_ticks,
    draw_panels,
    error_bars,
    layouts_in,
    legend_entry,
    panel_grid,
    plot_against_microbatches,
)
from analysis.figures.style import GREY, layout_style, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def speedup(group: ModelOnData) -> Figure | str:
    """Speedup in samples a second of training over the baseline that the axis names, with intervals
    over runs; an arrow shows that an interval goes on. Ticks are the bound: R·S·M/(M+(S-1)/V) with
    V virtual stages, or the order of actions for zero-bubble and zbv, over that of the baseline. A
    hollow marker lies above its bound, its layers' seconds do not explain why, and it is not valid.
    """
    rows = group.training.dropna(subset=["speedup"])
    compared = [part for _, part in group.panels(rows) if part["effect"].notna().any()]
    if not compared:
        return "no valid baseline, or nothing to compare with it"
    label = f"speedup over {group.baseline_name} (ratio)"
    return _against_microbatches(group, pd.concat(compared), "speedup", label, ("bound", "bound"))


def efficiency(group: ModelOnData) -> Figure | str:
    """Ideal step time (the schedule with the measured forward and backward seconds of each stage,
    and nothing else) over the measured step time.
    """
    rows = group.training.dropna(subset=["efficiency"])
    if rows.empty:
        return "no forward and backward seconds in the records"
    return _against_microbatches(group, rows, "efficiency", "efficiency (ideal / step time)")


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
    reference: tuple[str, str] | None = None,
) -> Figure:
    """A panel a variant; `reference` is a column that is drawn as ticks, and its name. Without one
    a line is drawn at 1."""
    ticks, named = reference or (None, "")
    marks = [*rows[column], *(rows[ticks] if ticks else [1.0])]
    limits = axis_limits(
        marks, rows[f"{column}_low"], rows[f"{column}_high"], zero=ticks is not None
    )

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        plot_against_microbatches(axes, part, column, rows, limits, ticks)
        if ticks is None:
            axes.axhline(1.0, color=GREY, lw=0.8)

    legend = [legend_entry(named, ls="none", marker="_", ms=10, mew=1.4)] if ticks else []
    return draw_panels(group, rows, draw, label, limits=limits, legend=legend)


def strong_scaling(group: ModelOnData) -> Figure | str:
    """Speedup, and speedup over ranks, of layouts that share the baseline's samples a step; of each
    layout the fastest configuration.
    """
    return _against_ranks(group, weak=False)


def weak_scaling(group: ModelOnData) -> Figure | str:
    """Speedup of samples a second, and speedup over ranks, of layouts in which each replica has the
    baseline's mini-batch; of each layout the fastest configuration.
    """
    return _against_ranks(group, weak=True)


def _against_ranks(group: ModelOnData, *, weak: bool) -> Figure | str:
    """The configuration with the highest speedup of each layout, as two panels."""
    rows = group.training.dropna(subset=["speedup"])
    rows = rows.assign(ranks=rows["stages"] * rows["replicas"])
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
    for end in ("", "_low", "_high"):
        best[f"share{end}"] = best[f"speedup{end}"] * first["ranks"] / best["ranks"]
    counts = sorted(set(best["ranks"]))
    with styled():
        figure, axes = panel_grid(["", ""], group.title, sharey=False)
        _draw_ranks(axes[0], best, "speedup", counts, [n / first["ranks"] for n in counts])
        _draw_ranks(axes[1], best, "share", counts, [1.0] * len(counts))
        axes[0].set_ylabel(f"speedup over {group.baseline_name} (ratio)")
        axes[1].set_ylabel("efficiency (speedup / ranks)")
        add_legend(figure, axes)
    return figure


def _draw_ranks(
    axes: Axes, best: pd.DataFrame, column: str, counts: list[int], ideal: list[float]
) -> None:
    """A marker a layout; those with equally many ranks are next to one another."""
    bounds = (f"{column}_low", f"{column}_high")
    limits = axis_limits([*best[column], *ideal], best[bounds[0]], best[bounds[1]])
    axes.plot(counts, ideal, color=GREY, lw=0.8, label="ideal")
    for ranks in counts:
        same = best[best["ranks"] == ranks]
        names = layouts_in(same)
        for place, name in enumerate(names):
            mine, style = same[same["layout"] == name], layout_style(name)
            across = [ranks + 0.04 * counts[-1] * (place - (len(names) - 1) / 2)]
            axes.plot(
                across, mine[column], marker=style.marker, c=style.colour, ls="none", label=name
            )
            error_bars(axes, across, mine, column, bounds, limits)
    axes.set_ylim(*limits)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlim(0, 1.1 * counts[-1])
    axes.set_xlabel("ranks")
    axes.grid(visible=False, axis="x")


def memory(group: ModelOnData) -> Figure | str:
    """The most memory that each rank used, a bar a rank, mean and range over runs, with the most
    micro-batches that the layout was run with.
    """
    column, label = "peak_rss_mib", "peak memory of a rank (MiB)"
    if group.ranks["peak_device_mib"].notna().any():
        column, label = "peak_device_mib", "peak GPU memory of a rank (MiB)"
    ranks = group.ranks.dropna(subset=[column])
    if ranks.empty:
        return "no memory in the records"
    by_cell = ranks.groupby(["cell", "rank"], observed=True)[column].max().reset_index()
    settings = ["cell", "layout", "microbatches", *group.variants]
    rows = by_cell.merge(group.cells[settings], on="cell")

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        most = part.groupby("layout")["microbatches"].transform("max")
        found = part[part["microbatches"] == most].groupby(["layout", "microbatches", "rank"])
        bars, labels = found[column].agg(["mean", "min", "max"]).reset_index(), []
        for place, name in enumerate(layouts_in(bars)):
            mine, style = bars[bars["layout"] == name].sort_values("rank"), layout_style(name)
            width = 0.8 / len(mine)
            across = [place - 0.4 + width * (number + 0.5) for number in range(len(mine))]
            axes.bar(
                across, mine["mean"], 0.9 * width, color=style.colour, hatch=style.hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            error_bars(axes, across, mine, "mean", ("min", "max"))
            labels.append(f"{name}\nm {mine['microbatches'].iloc[0]}")
        count_ticks(axes, labels, "layout (m: micro-batches)")

    limits = axis_limits(rows[column], rows[column], rows[column])
    return draw_panels(group, rows, draw, label, limits=limits)

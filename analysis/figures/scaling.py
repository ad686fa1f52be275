"""Figures of speed: against micro-batches and against ranks, with memory and messages.

Each function takes the cells of a model on a data set and returns a figure, or the reason why the
run has no data for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    EVERYWHERE,
    Limits,
    add_legend,
    axis_limits,
    count_in_decades,
    error_bars,
    keep_words,
    layouts_in,
    legend_entry,
    panel_grid,
    plot_against_microbatches,
    reference_handle,
    row_words,
    title_panels,
)
from analysis.figures.style import GREY, layout_style, styled
from analysis.summary.settings_in_words import IMPLEMENTATIONS, SAMPLERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LIBRARY = ("implementation", "sampler", "semantics")
"""Settings that have no panel of their own in figures of sampled training."""
_LIBRARY_STYLES: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("D", (0, (5, 1.2, 1, 1.2))), ("s", "--"), ("^", ":"), ("P", (0, (1, 3))),
)  # fmt: skip
"""Marker and line style of the first library, the second, ..."""


def speedup(group: ModelOnData) -> Figure | str:
    """Speedup over the baseline with its interval; ticks are the bound of each layout."""
    rows = group.training.dropna(subset=["speedup"])
    if rows.empty:
        return "no valid baseline to compare with"
    compared = [part.index for _, part in group.panels(rows) if part["effect"].notna().any()]
    if not compared:
        return "only the baseline, and nothing to compare with it"
    rows = rows.loc[np.concatenate(compared)]
    label = f"speedup over {group.baseline_name} (ratio)"
    return _against_microbatches(group, rows, "speedup", label, reference="bound", zero=True)


def efficiency(group: ModelOnData) -> Figure | str:
    """Ideal over measured step time; 1 is a step without any cost beside the schedule."""
    rows = group.training.dropna(subset=["efficiency"])
    if rows.empty:
        return "no forward and backward seconds in the records"
    label = "efficiency (ideal / step time)"
    return _against_microbatches(group, rows, "efficiency", label, line=1.0)


def bubble(group: ModelOnData) -> Figure | str:
    """Share of rank-time spent waiting; ticks are what equal stages would have to wait."""
    rows = group.training.dropna(subset=["bubble"])
    if rows.empty:
        return "no waiting seconds in the records"
    shares = ("bubble", "bubble_low", "bubble_high", "balanced_bubble")
    rows = rows.assign(**{name: 100 * rows[name] for name in shares})
    label, equal = "waiting (% of rank-time)", "equal stages"
    return _against_microbatches(
        group, rows, "bubble", label, reference="balanced_bubble", named=equal, zero=True
    )


def _against_microbatches(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    label: str,
    *,
    reference: str | None = None,
    named: str = "bound",
    line: float | None = None,
    zero: bool = False,
) -> Figure:
    """A panel a variant, all with the same axis; `line` is drawn across."""
    parts = list(group.panels(rows))
    marks = [*rows[column], *(rows[reference] if reference else []), *([line] if line else [])]
    bounds = (f"{column}_low", f"{column}_high")
    limits = axis_limits(marks, rows[bounds[0]], rows[bounds[1]], zero=zero)
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            plot_against_microbatches(
                one, part, column, rows, interval=bounds, reference=reference, limits=limits
            )
            if line is not None:
                one.axhline(line, color=GREY, lw=0.8)
        axes[0].set_ylim(*limits)
        axes[0].set_ylabel(label)
        add_legend(figure, axes, [reference_handle(named)] if reference else [])
    return figure


def strong_scaling(group: ModelOnData) -> Figure | str:
    """Speedup and efficiency against ranks, which share the baseline's samples a step."""
    return _against_ranks(group, weak=False)


def weak_scaling(group: ModelOnData) -> Figure | str:
    """Speedup and efficiency against ranks, each with the baseline's samples a step."""
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
        figure, axes = panel_grid(2, sharey=False)
        axes[0].set_title(group.title, loc="left")
        _draw_ranks(axes[0], best, "speedup", counts, [n / first["ranks"] for n in counts])
        _draw_ranks(axes[1], best, "share", counts, [1.0] * len(counts))
        axes[0].set_ylabel(f"speedup over {group.baseline_name} (ratio)")
        axes[1].set_ylabel("efficiency (speedup / ranks)")
        add_legend(figure, axes)
    return figure


def _draw_ranks(
    axes: Axes, best: pd.DataFrame, column: str, counts: list[int], ideal: list[float]
) -> None:
    """A mark a layout; those with equally many ranks are next to one another."""
    bounds = (f"{column}_low", f"{column}_high")
    limits = axis_limits([*best[column], *ideal], best[bounds[0]], best[bounds[1]])
    axes.plot(counts, ideal, color=GREY, lw=0.8, label="ideal")
    for name in layouts_in(best):
        mine, style = best[best["layout"] == name], layout_style(name)
        ranks = int(mine["ranks"].iloc[0])
        same = layouts_in(best[best["ranks"] == ranks])
        across = [ranks + 0.04 * counts[-1] * (same.index(name) - (len(same) - 1) / 2)]
        axes.plot(across, mine[column], marker=style.marker, c=style.colour, ls="none", label=name)
        error_bars(axes, across, mine, column, bounds, limits)
        keep_words(axes, row_words(across, mine, "ranks", column, bounds))
    axes.set_ylim(*limits)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlim(0, 1.1 * counts[-1])
    axes.set_xlabel("ranks")
    axes.grid(visible=False, axis="x")


def peak_memory(group: ModelOnData) -> Figure | str:
    """The most memory that each rank used, a group of bars a layout."""
    column, label = "peak_rss_mib", "peak memory of a rank (MiB)"
    if group.ranks["peak_device_mib"].notna().any():
        column, label = "peak_device_mib", "peak GPU memory of a rank (MiB)"
    ranks = group.ranks.dropna(subset=[column])
    if ranks.empty:
        return "no memory in the records"
    settings = group.cells[["cell", "layout", "microbatches"]]
    by_cell = ranks.groupby(["cell", "rank"], observed=True)[column].max().reset_index()
    rows = by_cell.merge(settings, on="cell")
    return _bars_of_ranks(group, rows, column, label)


def messages(group: ModelOnData) -> Figure | str:
    """The bytes that each rank sends in a training step, a group of bars a layout."""
    cells = group.cells[["layout", "microbatches", "bytes_sent"]].dropna().drop_duplicates()
    rows = pd.DataFrame(
        [
            (layout, count, rank, sent / 2**20)
            for layout, count, text in cells.itertuples(index=False)
            for rank, sent in enumerate(json.loads(text) or ())
        ],
        columns=["layout", "microbatches", "rank", "mib"],
    )
    if not rows["mib"].any():
        return "no messages, or of sizes that differ from step to step"
    return _bars_of_ranks(group, rows, "mib", "sent by a rank in a step (MiB)")


def _bars_of_ranks(group: ModelOnData, rows: pd.DataFrame, column: str, label: str) -> Figure:
    """A bar a rank, mean and range over runs, of the most micro-batches of each layout."""
    most = rows.groupby("layout")["microbatches"].transform("max")
    rows = rows[rows["microbatches"] == most]
    rows = rows.groupby(["layout", "microbatches", "rank"])[column].agg(["mean", "min", "max"])
    rows = rows.reset_index()
    names = layouts_in(rows)
    with styled():
        figure, (axes,) = panel_grid(1)
        axes.set_title(group.title, loc="left")
        for place, name in enumerate(names):
            mine, style = rows[rows["layout"] == name].sort_values("rank"), layout_style(name)
            width = 0.8 / len(mine)
            across = [place - 0.4 + width * (number + 0.5) for number in range(len(mine))]
            axes.bar(
                across, mine["mean"], 0.9 * width, color=style.colour, hatch=style.hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            error_bars(axes, across, mine, "mean", ("min", "max"))
            texts = (
                f"{name}, rank {r}: {m:.4g}"
                for r, m in zip(mine["rank"], mine["mean"], strict=True)
            )
            keep_words(axes, zip(across, mine["mean"], texts, strict=True))
        of = rows.groupby("layout")["microbatches"].first()
        axes.set_xticks(range(len(names)), [f"{name}\nm {of[name]}" for name in names])
        axes.set_xlabel("layout (a bar a rank; m: micro-batches)")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
    return figure


def epoch_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds of an epoch of sampled mini-batches against ranks, with intervals over runs."""
    rows = _sampled_replicas(group).dropna(subset=["epoch_s"])
    if rows.empty:
        return "no epoch in the results, of ranks with a whole model each"
    with styled():
        figure, axes = _sampled_against_ranks(group, rows, "epoch_s", published)
        axes[0].set_ylabel("epoch (s)")
        count_in_decades(axes[0])
        add_legend(figure, axes, _library_entries(rows, published))
    return figure


def epoch_speedup(group: ModelOnData) -> Figure | str:
    """Speedup of an epoch against ranks, and the ideal, which is as many as there are ranks."""
    rows = _sampled_replicas(group).dropna(subset=["speedup"])
    if rows["replicas"].nunique() < 2:
        return "one number of ranks alone, or no valid baseline to compare with"
    with styled():
        base = group.baseline.layout.replicas if group.baseline else 1
        ideal = [count / base for count in sorted({int(count) for count in rows["replicas"]})]
        limits = axis_limits([*rows["speedup"], *ideal], rows["speedup_low"], rows["speedup_high"])
        figure, axes = _sampled_against_ranks(group, rows, "speedup", None, limits)
        for one in axes:
            one.plot(range(len(ideal)), ideal, color=GREY, lw=0.8, label="ideal")
        axes[0].set_ylim(*limits)
        axes[0].set_ylabel(f"speedup over {group.baseline_name} (ratio)")
        add_legend(figure, axes, _library_entries(rows, None))
    return figure


def with_library(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of sampled training with a column `library`: whose loader and layers they are.

    Such as DGL, or `ours, once` where ours sampled in several ways.
    """
    rows = rows[rows["sampler"].notna()]
    several = rows.loc[rows["sampler"] == "ours", "semantics"].nunique() > 1
    names = []
    for row in rows.to_dict("records"):
        sampler = SAMPLERS[str(row["sampler"])]
        layers = IMPLEMENTATIONS.get(str(row["implementation"]), "ours")
        name = f"{sampler}, {row['semantics']}" if several and sampler == "ours" else sampler
        names.append(name if layers == sampler else f"{name}, layers of {layers}")
    return rows.assign(library=names)


def libraries_in(rows: pd.DataFrame) -> list[str]:
    """Ours first."""
    return sorted(set(rows["library"]), key=lambda name: (not name.startswith("ours"), name))


def _sampled_replicas(group: ModelOnData) -> pd.DataFrame:
    """Sampled rows without pipelines."""
    rows = with_library(group.training.dropna(subset=["mean_s"]))
    return rows[rows["stages"] == 1]


def _sampled_against_ranks(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    published: pd.DataFrame | None,
    limits: Limits = EVERYWHERE,
) -> tuple[Figure, list[Axes]]:
    """A line a library against the number of ranks, with points in the layouts' colours.

    Numbers of ranks are at equal distances, libraries side by side so that intervals are seen.
    """
    parts = list(group.panels(rows, but=_LIBRARY))
    libraries, stem = libraries_in(rows), column.removesuffix("_s")
    figure, axes = panel_grid(len(parts))
    title_panels(figure, axes, [title for title, _ in parts], group.title)
    ranks, interval = (
        sorted({int(count) for count in rows["replicas"]}),
        (f"{stem}_low", f"{stem}_high"),
    )
    for one, (_, part) in zip(axes, parts, strict=False):
        for number, library in enumerate(libraries):
            mine = part[part["library"] == library].sort_values("replicas")
            if mine.empty:
                continue
            marker, dash = _library_style(number)
            shift = (number - (len(libraries) - 1) / 2) * min(0.14, 0.6 / len(libraries))
            across = [ranks.index(int(count)) + shift for count in mine["replicas"]]
            one.plot(across, mine[column], color=GREY, ls=dash, lw=1.0, zorder=1)
            for x, layout, value in zip(across, mine["layout"], mine[column], strict=True):
                colour = layout_style(str(layout)).colour
                one.plot([x], [value], marker=marker, color=colour, ls="none", zorder=2)
            error_bars(one, across, mine, column, interval, limits)
            words = row_words(across, mine, "replicas", column, interval)
            keep_words(one, ((x, y, f"{library}, {text}") for x, y, text in words))
        if published is not None:
            _plot_published(one, part, published, ranks, libraries)
        one.set_xticks(range(len(ranks)), [str(count) for count in ranks])
        one.set_xlim(-0.5, len(ranks) - 0.5)
        one.grid(visible=False, axis="x")
        one.set_xlabel("ranks")
    return figure, axes


def _plot_published(
    axes: Axes,
    rows: pd.DataFrame,
    published: pd.DataFrame,
    ranks: Sequence[int],
    libraries: Sequence[str],
) -> None:
    """Points of the panel's batch sizes, in the line style of their library."""
    points = published[published["batch_size"].isin(set(rows["batch_size"]))]
    points = points[points["ranks"].isin(ranks)]
    for library, mine in points.groupby("library"):
        number = libraries.index(str(library)) if library in libraries else len(libraries)
        across = [ranks.index(int(count)) for count in mine["ranks"]]
        dash = _library_style(number)[1]
        axes.plot(across, mine["epoch_s"], color=GREY, ls=dash, lw=0.7, marker="x")


def _library_style(number: int) -> tuple[str, Any]:
    return _LIBRARY_STYLES[number % len(_LIBRARY_STYLES)]


def _library_entries(rows: pd.DataFrame, published: pd.DataFrame | None) -> list[Any]:
    """Legend entries: markers and line styles are libraries, colours layouts."""
    found = []
    for number, library in enumerate(libraries_in(rows)):
        marker, dash = _library_style(number)
        found.append(legend_entry(library, marker=marker, ls=dash))
    found += [legend_entry(name, color=layout_style(name).colour) for name in layouts_in(rows)]
    if published is not None:
        found.append(legend_entry("published", marker="x", ls="none"))
    return found

"""Figures of graphs in chunks: time, accuracy, edges lost and nodes computed more than once.

Time and accuracy are figures 3 and 4 of Dearing & Wang (GNNSys 2021), with their points beside
ours. Colours are layouts, markers and line styles chunk modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.figures.hover import tell, told_of_rows
from analysis.figures.panels import add_legend, error_bars, layouts_in, panel_grid, title_panels
from analysis.figures.studies import Study
from analysis.figures.style import (
    FULL_IN,
    REBUILT,
    SERIES_COLOURS,
    layout_look,
    mode_look,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_CHUNKS = "chunks of the graph (all replicas)"
_MODE = ("chunks", "rebuild")
_WHO_COMPUTES = (
    "implementation",
    "rebuild",
    "engine",
    "schedule",
    "virtual_stages",
    "balance",
    "activation_checkpointing",
    "bucket_mib",
)
"""Settings that decide neither which edges are kept nor which nodes are computed."""
ACCURACIES = ("test_accuracy", "val_accuracy")


def chunk_time(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds an epoch against chunks, with the intervals of the means."""
    rows = study.summary[study.summary["phase"] == "train"].copy()
    rows = rows.dropna(subset=["mean_s"])
    if rows.empty:
        return "no training step after warm-up"
    rows["total"] = rows["microbatches"] * rows["replicas"]
    rows["mode"] = _modes(study, rows)
    with styled():
        figure, axes = _draw_panels(study, rows, "mean_s", ("mean_low", "mean_high"))
        if published is not None:
            _draw_published(_panel_of_dgl(study, rows, axes), published, "avg_epoch_s")
        axes[0].set_ylabel("epoch time (s)")
        spread = [*rows["mean_s"], *rows["mean_low"].dropna(), *rows["mean_high"].dropna()]
        if published is not None:
            spread += [published["avg_epoch_s"].min(), published["avg_epoch_s"].max()]
        if min(spread) > 0 and max(spread) > 20 * min(spread):
            axes[0].set_yscale("log")
        else:
            axes[0].set_ylim(bottom=0)
        add_legend(figure, axes, _mode_handles(rows))
    return figure


def chunk_accuracy(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Final accuracy against chunks, mean and range over seeds and repeats."""
    known = [name for name in ACCURACIES if name in study.cells and study.cells[name].notna().any()]
    if features_are_made_up(study):
        return "features are made up, so accuracy says nothing"
    if not known:
        return "no accuracy in the results"
    # The published accuracies are of the validation nodes.
    metric = "val_accuracy" if published is not None and "val_accuracy" in known else known[0]
    cells = study.cells.assign(total=study.cells["microbatches"] * study.cells["replicas"])
    cells["mode"] = _modes(study, cells)
    keys = ["layout", "total", *dict.fromkeys(["mode", "chunks", *study.variants])]
    # A setting that varies may be none in some cells.
    rows = (
        cells.groupby(keys, observed=True, dropna=False)[metric]
        .agg(["mean", "min", "max"])
        .reset_index()
        .dropna(subset=["mean"])
    )
    with styled():
        figure, axes = _draw_panels(study, rows, "mean", ("min", "max"))
        if published is not None:
            _draw_published(_panel_of_dgl(study, rows, axes), published, "val_acc")
        axes[0].set_ylabel(f"{metric.split('_')[0]} accuracy")
        add_legend(figure, axes, _mode_handles(rows))
    return figure


def chunk_losses(study: Study) -> Figure | str:
    """Edges kept, and nodes and edges computed for each of the graph, against chunks.

    A line a mode of chunks and combination of the other variants, of which graphs may be one.
    """
    columns = ["edges_kept", "node_redundancy", "edge_redundancy"]
    if study.cells["edges_kept"].isna().all():
        return "no edges kept in the results"
    cells = study.cells.assign(total=study.cells["microbatches"] * study.cells["replicas"])
    cells = cells.astype(dict.fromkeys(columns, float))
    rows = cells.dropna(subset=["edges_kept"])
    lines = [
        (str(mode), title, part.groupby("total")[columns].mean().reset_index())
        for title, of_title in study.panels(rows, but=("chunks", *_WHO_COMPUTES))
        for mode, part in of_title.groupby("chunks", observed=True)
    ]
    with styled():
        figure = new_figure(FULL_IN, 2.4)
        axes = list(figure.subplots(1, 3))
        shown = {
            "edges_kept": "edges kept (%)",
            "node_redundancy": "nodes computed per node",
            "edge_redundancy": "edges computed per edge",
        }
        for one, (column, words) in zip(axes, shown.items(), strict=True):
            for number, (mode, title, part) in enumerate(lines):
                one.plot(
                    part["total"],
                    part[column] * (100 if column == "edges_kept" else 1),
                    color=SERIES_COLOURS[number % len(SERIES_COLOURS)],
                    marker=mode_look(mode)[0],
                    ls=mode_look(mode)[1],
                    label=f"{mode}, {title}" if title else mode,
                )
            one.set_ylabel(words)
            one.set_xlabel("chunks")
            if column == "edges_kept":
                one.set_ylim(0, 105)
            else:
                one.set_ylim(bottom=min(1.0, float(rows[column].min())))
            _integer_ticks(one, rows["total"])
        axes[0].set_title(study.title, loc="left")
        add_legend(figure, axes)
    return figure


def features_are_made_up(study: Study) -> bool:
    """Whether nothing can be learnt of the real data."""
    return "data_features" in study.cells and bool((study.cells["data_features"] == "made").all())


def _modes(study: Study, rows: pd.DataFrame) -> pd.Series[str]:
    """How each row's graph is cut, and whether in each layer again: a column where it varies."""
    if "rebuild" not in rows:
        rows = rows.assign(rebuild=study.cells["rebuild"].iloc[0])
    return rows["chunks"].astype(str) + rows["rebuild"].map({"layer": REBUILT}).fillna("")


def _modes_are_told(rows: pd.DataFrame) -> bool:
    """Where there are several, and where edges are cut out in each layer."""
    modes = set(rows["mode"])
    return len(modes) > 1 or any(mode.endswith(REBUILT) for mode in modes)


def _panel_of_dgl(study: Study, rows: pd.DataFrame, axes: list[Axes]) -> Axes:
    """Where the published points belong, which are DGL's; the first where it has none."""
    for one, (_, part) in zip(axes, study.panels(rows, but=_MODE), strict=False):
        if "implementation" in part and (part["implementation"] == "dgl").all():
            return one
    return axes[0]


def _draw_panels(
    study: Study, rows: pd.DataFrame, column: str, interval: tuple[str, str]
) -> tuple[Figure, list[Axes]]:
    parts = list(study.panels(rows, but=_MODE))
    # Over all panels: in one figure a marker means a layout or a mode, not now this and now that.
    several = _modes_are_told(rows)
    figure, axes = panel_grid(len(parts))
    title_panels(figure, axes, [title for title, _ in parts], study.title)
    for one, (_, part) in zip(axes, parts, strict=False):
        _draw_lines(one, part, column, interval, several_modes=several)
        one.set_xlabel(_CHUNKS if len(axes) == 1 else "chunks")
        _integer_ticks(one, rows["total"])
    return figure, axes


def _draw_lines(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    *,
    several_modes: bool,
) -> None:
    modes = sorted({str(mode) for mode in rows["mode"]})
    of_line = rows.groupby(["layout", "mode"], observed=True).groups
    lines = [(n, mode) for n in layouts_in(rows) for mode in modes if (n, mode) in of_line]
    # Lines with equal counts are drawn side by side, so that their intervals can be seen.
    apart = min(0.03, 0.1 / len(lines)) * max(1, int(rows["total"].max() - rows["total"].min()))
    for number, (name, mode) in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * apart
        style, (marker, dash) = layout_look(name), mode_look(mode)
        mine = rows.loc[of_line[name, mode]].sort_values("total")
        across = [count + shift for count in mine["total"]]
        axes.plot(
            across,
            mine[column],
            color=style.colour,
            marker=marker if several_modes else style.marker,
            ls=dash if several_modes else style.dash,
            # A label with an underscore is in no legend.
            label=f"_{name}" if several_modes else name,
        )
        error_bars(axes, across, mine, column, interval)
        tell(axes, told_of_rows(across, mine, "total", column, interval))
    if several_modes:
        # In the legend a layout is its colour alone.
        for name in layouts_in(rows):
            axes.plot([], [], color=layout_look(name).colour, label=name)


def _mode_handles(rows: pd.DataFrame) -> list[Line2D]:
    """Legend entries of markers and line styles, where they mean modes."""
    from matplotlib.lines import Line2D

    modes = sorted({str(mode) for mode in rows["mode"]})
    if not _modes_are_told(rows):
        return []
    return [
        Line2D([], [], color="#606060", marker=marker, ls=dash, label=mode)
        for mode in modes
        for marker, dash in [mode_look(mode)]
    ]


def _draw_published(axes: Axes, points: pd.DataFrame, column: str) -> None:
    axes.plot(
        points["chunks"],
        points[column],
        ls="--",
        lw=0.8,
        marker="x",
        color="#606060",
        label="published: DGL, 4 GPU",
    )
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, points["chunks"].min() - 0.2), max(high, points["chunks"].max() + 0.2))


def _integer_ticks(axes: Axes, counts: pd.Series[int]) -> None:
    ticks = sorted({int(count) for count in counts})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    beside = 0.08 * max(ticks[-1] - ticks[0], 1)
    axes.set_xlim(ticks[0] - beside, ticks[-1] + beside)
    axes.grid(visible=False, axis="x")

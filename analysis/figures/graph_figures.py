"""Figures of graphs: in chunks, and by whose code computes the layers.

Colours are layouts, markers and line styles are chunk modes. Docstrings of figures are their
captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    EVERYWHERE,
    axis_limits,
    count_ticks,
    draw_panels,
    error_bars,
    layouts_in,
    legend_entry,
    scale_upward,
)
from analysis.figures.style import GREY, Dash, layout_style
from analysis.summary.settings_in_words import COMPILED, IMPLEMENTATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REBUILT = ", rebuilt"
"""Suffix of the mode of chunks whose edges are cut out of the graph in each layer."""
_MODES: dict[str, tuple[str, Dash]] = {
    "contiguous": ("o", ":"),
    "clustered": ("s", "--"),
    "halo": ("^", "-"),
    f"contiguous{_REBUILT}": ("X", (0.0, (6.0, 1.5, 1.0, 1.5))),
    f"clustered{_REBUILT}": ("P", (0.0, (6.0, 1.5, 1.0, 1.5))),
}
"""Marker and line style of a chunk mode."""
_MODE = ("chunks", "rebuild")
_PIPELINE = (
    *("engine", "schedule", "virtual_stages", "balance", "activation_checkpointing", "bucket_mib"),
)
"""Settings that decide neither which edges are kept nor which nodes are computed."""
_MADE_UP = "features are made up, so accuracy says nothing"
_WHOLE = "every cell computes the whole graph in one chunk"


def chunk_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds an epoch against the number of chunks."""
    rows = group.training.dropna(subset=["mean_s"])
    if rows.empty:
        return "no training step after warm-up"
    if published is None and _is_whole(group):
        return _WHOLE
    points = None if published is None else published["avg_epoch_s"]
    return _against_chunks(
        group, rows, "mean_s", ("mean_low", "mean_high"), "epoch time (s)", published, points
    )


def chunk_accuracy(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Accuracy after training against the number of chunks, mean and range over seeds."""
    # Published accuracies are of the validation nodes.
    order = ("test_accuracy", "val_accuracy")[:: 1 if published is None else -1]
    known = [name for name in order if name in group.cells and group.cells[name].notna().any()]
    if _features_are_made_up(group):
        return _MADE_UP
    if published is None and _is_whole(group):
        return _WHOLE
    if not known:
        return "no accuracy in the results"
    rows = _mean_and_range(group.cells, known[0], (*_MODE, *group.variants))
    points = None if published is None else published["val_acc"]
    label = f"{known[0].split('_')[0]} accuracy"
    return _against_chunks(group, rows, "mean", ("min", "max"), label, published, points)


def _is_whole(group: ModelOnData) -> bool:
    return bool((group.cells["microbatches"] * group.cells["replicas"] == 1).all())


def _features_are_made_up(group: ModelOnData) -> bool:
    """Whether nothing can be learnt of the real data."""
    return "data_features" in group.cells and bool((group.cells["data_features"] == "made").all())


def _mean_and_range(cells: pd.DataFrame, metric: str, settings: Sequence[str]) -> pd.DataFrame:
    """A row a layout, micro-batches and settings, with mean, min and max over seeds and repeats."""
    keys = ["layout", "stages", "replicas", "microbatches", *settings]
    keys = list(dict.fromkeys(key for key in keys if key in cells))
    found = cells.groupby(keys, observed=True, dropna=False)[metric].agg(["mean", "min", "max"])
    return found.reset_index().dropna(subset=["mean"])


def _against_chunks(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    label: str,
    published: pd.DataFrame | None,
    points: pd.Series[float] | None,
) -> Figure:
    """A line a layout and chunk mode, and the published points, which are DGL's.

    Where there are several modes, markers and dashes are modes, else layouts.
    """
    if "rebuild" not in rows:
        rows = rows.assign(rebuild=group.cells["rebuild"].iloc[0])
    rebuilt = rows["rebuild"].map({"layer": _REBUILT}).fillna("")
    total = rows["microbatches"] * rows["replicas"]
    in_chunks = rows.loc[total > 1, "chunks"].unique()
    if len(in_chunks) == 1:
        # The whole graph in one chunk has no mode of its own.
        rows = rows.assign(chunks=in_chunks[0])
    rows = rows.assign(total=total, mode=rows["chunks"].astype(str) + rebuilt)
    modes = sorted(set(rows["mode"]))
    by_mode = len(modes) > 1 or modes[0].endswith(_REBUILT)
    marks = [*rows[column], *(() if points is None else points)]
    log = min(marks) > 0 and max(marks) > 20 * min(marks)
    limits = axis_limits(marks, rows[interval[0]], rows[interval[1]])
    panels = [part for _, part in group.panels(rows, _MODE)]
    dgl = [p for p in panels if "implementation" in p and (p["implementation"] == "dgl").all()]
    with_points = (dgl or panels)[0].index[0]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        lines = dict(iter(part.groupby(["layout", "mode"], observed=True)))
        order = [(n, m) for n in layouts_in(part) for m in modes if (n, m) in lines]
        apart = min(0.03, 0.1 / len(order)) * max(1, part["total"].max() - part["total"].min())
        for number, (name, mode) in enumerate(order):
            style = layout_style(name)
            marker, dash = _MODES[mode] if by_mode else (style.marker, style.dash)
            mine = lines[name, mode].sort_values("total")
            across = list(mine["total"] + (number - (len(order) - 1) / 2) * apart)
            axes.plot(
                across, mine[column], color=style.colour, marker=marker, ls=dash,
                label=f"_{name}" if by_mode else name,
            )  # fmt: skip
            error_bars(axes, across, mine, column, interval, EVERYWHERE if log else limits)
        chunks = sorted(set(rows["total"]))
        if published is not None and points is not None and with_points in part.index:
            axes.plot(
                published["chunks"], points, ls="--", lw=0.8, marker="x", color=GREY,
                label="published: DGL, 4 GPU",
            )  # fmt: skip
            chunks = sorted({*chunks, *published["chunks"]})
        _integer_ticks(axes, chunks)
        axes.set_xlabel("chunks of the graph (all replicas)" if len(panels) == 1 else "chunks")
        if log:
            axes.set_yscale("log")

    legend = []
    if by_mode:
        legend = [legend_entry(name, color=layout_style(name).colour) for name in layouts_in(rows)]
        legend += [legend_entry(mode, marker=_MODES[mode][0], ls=_MODES[mode][1]) for mode in modes]
    limited = None if log or column == "mean" else limits
    return draw_panels(group, rows, draw, label, but=_MODE, limits=limited, legend=legend)


def _integer_ticks(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    beside = 0.08 * max(ticks[-1] - ticks[0], 1)
    axes.set_xlim(ticks[0] - beside, ticks[-1] + beside)
    axes.grid(visible=False, axis="x")


def framework_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Milliseconds an epoch on one device, the whole graph at once, by whose code computes the
    layers.
    """
    rows = group.training.dropna(subset=["mean_s"])
    alone = (rows["stages"] * rows["replicas"] == 1) & (rows["microbatches"] == 1)
    if "rebuild" in rows:
        alone &= rows["rebuild"] == "once"
    rows = rows[alone]
    if rows["implementation"].nunique() < 2:
        return "one framework alone on one device"
    device = rows["device"] if "device" in rows else group.cells["device"].iloc[0]
    compiled = rows["compile"].map(COMPILED) if "compile" in rows else ""
    rows = rows.assign(
        **{name: 1e3 * rows[name] for name in ("mean_s", "mean_low", "mean_high")},
        place=rows["implementation"].replace(IMPLEMENTATIONS) + compiled + "\n",
        device=device,
    )
    rows["place"] += rows["device"].str.upper()
    known, values = set(rows["place"]), list(rows["mean_s"])
    if published is not None:
        published = published.assign(place=published["framework"] + "\n" + published["compute"])
        known |= set(published["place"])
        values += list(published["avg_epoch_ms"])
    # CPU before GPU, ours before the libraries.
    order = sorted(known, key=lambda at: ("CPU" not in at, not at.startswith("ours"), at))
    style = layout_style("seq")

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        across = [float(order.index(place)) for place in part["place"]]
        axes.plot(
            across, part["mean_s"], ls="none", marker=style.marker, c=style.colour, label="measured"
        )
        error_bars(axes, across, part, "mean_s", ("mean_low", "mean_high"))
        if published is not None:
            beside, shown = [order.index(at) + 0.22 for at in published["place"]], "avg_epoch_ms"
            axes.plot(
                beside, published[shown], ls="none", marker="x", color=GREY, label="published"
            )
        count_ticks(axes, order, "framework and device")
        scale_upward(axes, values)

    but = ("implementation", "compile", "device", *_MODE, *_PIPELINE)
    return draw_panels(group, rows, draw, "epoch time (ms)", but=but)

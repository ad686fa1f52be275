"""Figures of graphs: in chunks, and by whose code computes the layers.

Colours are layouts, markers and line styles are chunk modes. Published points are those of Dearing
& Wang (GNNSys 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    row_words,
    title_panels,
)
from analysis.figures.style import (
    FULL_IN,
    GREY,
    SERIES_COLOURS,
    Dash,
    layout_style,
    new_figure,
    styled,
)
from analysis.summary.settings_in_words import IMPLEMENTATIONS

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
_BESIDE = 0.22
"""How far a published point is from ours, in places."""
_MADE_UP = "features are made up, so accuracy says nothing"


def chunk_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds an epoch against chunks, with the intervals of the means."""
    rows = group.training.dropna(subset=["mean_s"])
    if rows.empty:
        return "no training step after warm-up"
    known = [] if published is None else list(published["avg_epoch_s"])
    marks = [*rows["mean_s"], *known]
    log = min(marks) > 0 and max(marks) > 20 * min(marks)
    limits = EVERYWHERE if log else axis_limits(marks, rows["mean_low"], rows["mean_high"])
    bounds = ("mean_low", "mean_high")
    with styled():
        figure, axes, entries = _against_chunks(group, rows, "mean_s", bounds, limits)
        if published is not None:
            _plot_published(_panel_of_dgl(group, rows, axes), published, "avg_epoch_s")
        axes[0].set_ylabel("epoch time (s)")
        if log:
            axes[0].set_yscale("log")
        else:
            axes[0].set_ylim(*limits)
        add_legend(figure, axes, entries)
    return figure


def chunk_accuracy(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Final accuracy against chunks, mean and range over seeds and repeats.

    `published` has accuracies of the validation nodes, so that these are drawn then.
    """
    order = ("test_accuracy", "val_accuracy")[:: 1 if published is None else -1]
    known = [name for name in order if name in group.cells and group.cells[name].notna().any()]
    if _features_are_made_up(group):
        return _MADE_UP
    if not known:
        return "no accuracy in the results"
    rows = _mean_and_range(group.cells, known[0], ("chunks", "rebuild", *group.variants))
    with styled():
        figure, axes, entries = _against_chunks(group, rows, "mean", ("min", "max"), EVERYWHERE)
        if published is not None:
            _plot_published(_panel_of_dgl(group, rows, axes), published, "val_acc")
        axes[0].set_ylabel(f"{known[0].split('_')[0]} accuracy")
        add_legend(figure, axes, entries)
    return figure


def chunk_losses(group: ModelOnData) -> Figure | str:
    """Edges kept, and nodes and edges computed for each of the graph, against chunks.

    A line a chunk mode and combination of the other variants, of which graphs may be one.
    """
    shown = {
        "edges_kept": "edges kept (%)",
        "node_redundancy": "nodes computed per node",
        "edge_redundancy": "edges computed per edge",
    }
    cells = group.cells.astype(dict.fromkeys(shown, float)).dropna(subset=["edges_kept"])
    if cells.empty:
        return "no edges kept in the results"
    cells = cells.assign(
        total=cells["microbatches"] * cells["replicas"], edges_kept=100 * cells["edges_kept"]
    )
    skipped = (*_MODE, "implementation", *_PIPELINE)
    lines = [
        (str(mode), title, part.groupby("total")[list(shown)].mean().reset_index())
        for title, of_title in group.panels(cells, but=skipped)
        for mode, part in of_title.groupby("chunks", observed=True)
    ]
    with styled():
        figure = new_figure(FULL_IN, 2.4)
        axes = list(figure.subplots(1, 3))
        for one, (column, words) in zip(axes, shown.items(), strict=True):
            for number, (mode, title, part) in enumerate(lines):
                marker, dash = _MODES[mode]
                one.plot(
                    part["total"], part[column], marker=marker, ls=dash,
                    color=SERIES_COLOURS[number % len(SERIES_COLOURS)],
                    label=f"{mode}, {title}" if title else mode,
                )  # fmt: skip
            one.set_ylabel(words)
            one.set_xlabel("chunks")
            if column == "edges_kept":
                one.set_ylim(0, 105)
            else:
                one.set_ylim(bottom=min(1.0, float(cells[column].min())))
            _integer_ticks(one, cells["total"])
        axes[0].set_title(group.title, loc="left")
        add_legend(figure, axes)
    return figure


def _features_are_made_up(group: ModelOnData) -> bool:
    """Whether nothing can be learnt of the real data."""
    return "data_features" in group.cells and bool((group.cells["data_features"] == "made").all())


def _mean_and_range(cells: pd.DataFrame, metric: str, settings: Sequence[str]) -> pd.DataFrame:
    """A row a layout, micro-batches and settings, with mean, min and max over seeds and repeats."""
    keys = ["layout", "stages", "replicas", "microbatches"]
    keys = list(dict.fromkeys([*keys, *(name for name in settings if name in cells)]))
    found = cells.groupby(keys, observed=True, dropna=False)[metric].agg(["mean", "min", "max"])
    return found.reset_index().dropna(subset=["mean"])


def _panel_of_dgl(group: ModelOnData, rows: pd.DataFrame, axes: list[Axes]) -> Axes:
    """The panel of the published points, which are DGL's; the first panel where it has none."""
    for one, (_, part) in zip(axes, group.panels(rows, but=_MODE), strict=False):
        if "implementation" in part and (part["implementation"] == "dgl").all():
            return one
    return axes[0]


def _against_chunks(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    limits: Limits,
) -> tuple[Figure, list[Axes], list[Any]]:
    """Figure, panels and the legend entries of chunk modes, where markers mean these."""
    if "rebuild" not in rows:
        rows = rows.assign(rebuild=group.cells["rebuild"].iloc[0])
    rows = rows.assign(
        total=rows["microbatches"] * rows["replicas"],
        mode=rows["chunks"].astype(str) + rows["rebuild"].map({"layer": _REBUILT}).fillna(""),
    )
    modes = sorted({str(mode) for mode in rows["mode"]})
    # Over all panels: in one figure a marker means either a layout or a mode.
    by_mode = len(modes) > 1 or any(mode.endswith(_REBUILT) for mode in modes)
    parts = list(group.panels(rows, but=_MODE))
    figure, axes = panel_grid(len(parts))
    title_panels(figure, axes, [title for title, _ in parts], group.title)
    for one, (_, part) in zip(axes, parts, strict=False):
        _plot_modes(one, part, column, interval, limits, by_mode=by_mode)
        one.set_xlabel("chunks of the graph (all replicas)" if len(axes) == 1 else "chunks")
        _integer_ticks(one, rows["total"])
    if not by_mode:
        return figure, axes, []
    # In the legend a layout is its colour alone.
    entries = [legend_entry(name, color=layout_style(name).colour) for name in layouts_in(rows)]
    entries += [legend_entry(mode, marker=_MODES[mode][0], ls=_MODES[mode][1]) for mode in modes]
    return figure, axes, entries


def _plot_modes(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    limits: Limits,
    *,
    by_mode: bool,
) -> None:
    """A line a layout and chunk mode, next to one another so that their intervals are seen."""
    lines = dict(iter(rows.groupby(["layout", "mode"], observed=True)))
    order = [(n, mode) for n in layouts_in(rows) for mode in sorted(set(rows["mode"]))]
    order = [key for key in order if key in lines]
    apart = min(0.03, 0.1 / len(order)) * max(1, int(rows["total"].max() - rows["total"].min()))
    for number, (name, mode) in enumerate(order):
        shift = (number - (len(order) - 1) / 2) * apart
        style, (marker, dash) = layout_style(name), _MODES[mode]
        mine = lines[name, mode].sort_values("total")
        across = [count + shift for count in mine["total"]]
        axes.plot(
            across, mine[column], color=style.colour,
            marker=marker if by_mode else style.marker, ls=dash if by_mode else style.dash,
            # A label with an underscore is in no legend.
            label=f"_{name}" if by_mode else name,
        )  # fmt: skip
        error_bars(axes, across, mine, column, interval, limits)
        keep_words(axes, row_words(across, mine, "total", column, interval))


def _plot_published(axes: Axes, points: pd.DataFrame, column: str) -> None:
    axes.plot(
        points["chunks"], points[column], ls="--", lw=0.8, marker="x", color=GREY,
        label="published: DGL, 4 GPU",
    )  # fmt: skip
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, points["chunks"].min() - 0.2), max(high, points["chunks"].max() + 0.2))


def _integer_ticks(axes: Axes, counts: pd.Series[int]) -> None:
    ticks = sorted({int(count) for count in counts})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    beside = 0.08 * max(ticks[-1] - ticks[0], 1)
    axes.set_xlim(ticks[0] - beside, ticks[-1] + beside)
    axes.grid(visible=False, axis="x")


def framework_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Milliseconds an epoch by whose code computes the layers, with the intervals of the means."""
    rows = _on_one_device(group, group.training.dropna(subset=["mean_s"]))
    names = {"mean_ms": "mean_s", "low_ms": "mean_low", "high_ms": "mean_high"}
    rows = rows.assign(**{name: 1e3 * rows[column] for name, column in names.items()})
    if published is not None:
        published = published.assign(shown=published["avg_epoch_ms"])
    bounds = ("low_ms", "high_ms")
    return _by_framework(group, rows, "mean_ms", bounds, "epoch time (ms)", published, log=True)


def framework_accuracy(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Accuracy of test nodes after training, mean and range over seeds and repeats."""
    if "test_accuracy" not in group.cells or group.cells["test_accuracy"].isna().all():
        return "no test accuracy in the results"
    if _features_are_made_up(group):
        return _MADE_UP
    cells = _on_one_device(group, group.cells)
    rows = _mean_and_range(cells, "test_accuracy", ("implementation", "device", *group.variants))
    if published is not None:
        published = published.assign(shown=published["test_acc"])
    return _by_framework(group, rows, "mean", ("min", "max"), "test accuracy", published)


def _on_one_device(group: ModelOnData, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the whole graph, cut once; with the device, which is not always a column."""
    alone = (rows["stages"] * rows["replicas"] == 1) & (rows["microbatches"] == 1)
    if "rebuild" in rows:
        alone &= rows["rebuild"] == "once"
    mine = rows[alone]
    return mine if "device" in mine else mine.assign(device=group.cells["device"].iloc[0])


def _by_framework(
    group: ModelOnData,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    unit: str,
    published: pd.DataFrame | None,
    *,
    log: bool = False,
) -> Figure | str:
    """A place for each framework and device, ours and published; a panel for other settings."""
    if rows["implementation"].nunique() < 2:
        return "one framework alone on one device"
    places = [_place(*pair) for pair in zip(rows["implementation"], rows["device"], strict=True)]
    rows, known = rows.assign(place=places), set(places)
    if published is not None:
        published = published.assign(place=published["framework"] + "\n" + published["compute"])
        known |= set(published["place"])
    order = sorted(known, key=_order)
    parts = list(group.panels(rows, but=("implementation", "device", *_MODE, *_PIPELINE)))
    style = layout_style("seq")
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            across = [float(order.index(place)) for place in part["place"]]
            one.plot(
                across, part[column], ls="none", marker=style.marker, c=style.colour,
                label="seq, measured",
            )  # fmt: skip
            error_bars(one, across, part, column, interval)
            words = row_words(across, part, "microbatches", column, interval)
            names = [place.replace("\n", ", ") for place in part["place"]]
            keep_words(
                one,
                (
                    (x, y, f"{name}: {text.partition(': ')[2]}")
                    for (x, y, text), name in zip(words, names, strict=True)
                ),
            )
            if published is not None:
                beside = [order.index(place) + _BESIDE for place in published["place"]]
                one.plot(
                    beside, published["shown"], ls="none", marker="x", color=GREY,
                    label="published",
                )  # fmt: skip
            one.set_xticks(range(len(order)), order)
            one.set_xlim(-0.5, len(order) - 0.5)
            one.grid(visible=False, axis="x")
            one.set_xlabel("framework and device")
        if log:
            count_in_decades(axes[0])
        axes[0].set_ylabel(unit)
        add_legend(figure, axes)
    return figure


def _place(implementation: object, device: object) -> str:
    name = str(implementation)
    return f"{IMPLEMENTATIONS.get(name, name)}\n{str(device).upper()}"


def _order(place: str) -> tuple[bool, bool, str]:
    """CPU before GPU, ours before the libraries."""
    framework, _, device = place.partition("\n")
    return device != "CPU", framework != "ours", framework

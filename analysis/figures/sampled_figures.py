"""Figures of sampled training: an epoch against ranks. Docstrings are their captions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    count_ticks,
    draw_panels,
    error_bars,
    legend_entry,
    scale_upward,
)
from analysis.figures.style import GREY, SERIES_COLOURS
from analysis.summary.settings_in_words import IMPLEMENTATIONS, SAMPLERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LIBRARY = ("implementation", "sampler", "semantics")
"""Settings that have no panel of their own."""
_STYLES: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("D", (0, (5, 1.2, 1, 1.2))), ("s", "--"), ("^", ":"), ("P", (0, (1, 3))),
)  # fmt: skip
"""Marker and line style of the first library, the second, ..."""


def _by_library(group: ModelOnData) -> tuple[pd.DataFrame, list[str]]:
    """Training rows with a column `library`: whose loader and layers they are; ours come first.

    Such as DGL, or `ours, once` where ours sampled in several ways.
    """
    rows = group.training.dropna(subset=["mean_s", "sampler"])
    several = rows.loc[rows["sampler"] == "ours", "semantics"].nunique() > 1
    names = []
    for row in rows.to_dict("records"):
        sampler = SAMPLERS[str(row["sampler"])]
        layers = IMPLEMENTATIONS.get(str(row["implementation"]), "ours")
        name = f"{sampler}, {row['semantics']}" if several and sampler == "ours" else sampler
        names.append(name if layers == sampler else f"{name}, layers of {layers}")
    order = sorted(set(names), key=lambda name: (not name.startswith("ours"), name))
    return rows.assign(library=names), order


def epoch_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds of an epoch of sampled mini-batches against the number of ranks, each with its own
    mini-batch, with intervals over runs.
    """
    rows, libraries = _by_library(group)
    rows = rows[rows["stages"] == 1].dropna(subset=["epoch_s"])
    if rows.empty:
        return "no epoch in the results, of ranks with a whole model each"
    ranks, values = sorted({int(count) for count in rows["replicas"]}), list(rows["epoch_s"])
    if published is not None:
        mine = published["batch_size"].isin(set(rows["batch_size"]))
        published = published[mine & published["ranks"].isin(ranks)]
        values += list(published["epoch_s"])

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        for number, library in enumerate(libraries):
            mine = part[part["library"] == library].sort_values("replicas")
            marker, dash = _STYLES[number % len(_STYLES)]
            colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
            shift = (number - (len(libraries) - 1) / 2) * min(0.14, 0.6 / len(libraries))
            across = [ranks.index(int(count)) + shift for count in mine["replicas"]]
            axes.plot(across, mine["epoch_s"], color=colour, ls=dash, marker=marker, label=library)
            error_bars(axes, across, mine, "epoch_s", ("epoch_low", "epoch_high"))
        if published is not None:
            points = published[published["batch_size"].isin(set(part["batch_size"]))]
            for name, mine in points.groupby("library"):
                number = libraries.index(str(name)) if name in libraries else len(libraries)
                across = [ranks.index(int(count)) for count in mine["ranks"]]
                dash = _STYLES[number % len(_STYLES)][1]
                axes.plot(across, mine["epoch_s"], color=GREY, ls=dash, lw=0.7, marker="x")
        count_ticks(axes, [str(count) for count in ranks], "ranks")
        scale_upward(axes, values)

    legend = [] if published is None else [legend_entry("published", marker="x", ls="none")]
    return draw_panels(group, rows, draw, "epoch (s)", but=_LIBRARY, legend=legend)

"""Figures of sampled training: an epoch against ranks, and the parts of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    axis_limits,
    count_ticks,
    draw_panels,
    error_bars,
    legend_entry,
    plain_log_scale,
)
from analysis.figures.style import GREY, SERIES_COLOURS, layout_order
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
_PARTS = {
    "sampling": ("wait for sampling", "#8a8a8a", "////"),
    "gathering": ("wait for features", "#bdbdbd", "...."),
    "computing": ("computing", "#0a5a8a", ""),
    "averaging": ("averaging gradients", "#d55e00", "xxxx"),
    "rest": ("waiting for ranks, and rest", "#f4f4f4", ""),
}
"""Columns of the parts of a step: legend, colour, hatch; from the bottom of a bar to its top."""


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
    """Seconds of an epoch of sampled mini-batches against ranks, with intervals over runs.

    Numbers of ranks are at equal distances, libraries side by side so that intervals are seen.
    """
    rows, libraries = _by_library(group)
    rows = rows[rows["stages"] == 1].dropna(subset=["epoch_s"])
    if rows.empty:
        return "no epoch in the results, of ranks with a whole model each"
    ranks = sorted({int(count) for count in rows["replicas"]})

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
            for name, mine in points[points["ranks"].isin(ranks)].groupby("library"):
                number = libraries.index(str(name)) if name in libraries else len(libraries)
                across = [ranks.index(int(count)) for count in mine["ranks"]]
                dash = _STYLES[number % len(_STYLES)][1]
                axes.plot(across, mine["epoch_s"], color=GREY, ls=dash, lw=0.7, marker="x")
        count_ticks(axes, [str(count) for count in ranks], "ranks")
        plain_log_scale(axes)

    legend = [] if published is None else [legend_entry("published", marker="x", ls="none")]
    return draw_panels(group, rows, draw, "epoch (s)", but=_LIBRARY, legend=legend)


def step_parts(group: ModelOnData) -> Figure | str:
    """Milliseconds of a sampled step and of its parts, a bar a library and layout."""
    rows, libraries = _by_library(group)
    if rows.empty:
        return "no training step after warm-up"
    rows = _with_parts(rows)
    limits = axis_limits(rows["mean_ms"], rows["low_ms"], rows["high_ms"])

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        order = [*map(libraries.index, part["library"])]
        ranks = [layout_order(str(name)) for name in part["layout"]]
        places = sorted(range(len(part)), key=lambda place: (order[place], ranks[place]))
        part, bottom = part.iloc[places], np.zeros(len(part))
        across = np.arange(float(len(part)))
        for column, (label, colour, hatch) in _PARTS.items():
            heights = part[column].fillna(0.0).to_numpy()
            axes.bar(
                across, heights, 0.8, bottom, label=label, facecolor=colour, hatch=hatch,
                edgecolor="#404040", linewidth=0.4,
            )  # fmt: skip
            bottom = bottom + heights
        error_bars(axes, [*across], part, "mean_ms", ("low_ms", "high_ms"), limits)
        names = part["layout"] + "\n" + part["library"].str.replace(", ", "\n")
        count_ticks(axes, list(names), "layout and library")

    return draw_panels(group, rows, draw, "step (ms)", but=_LIBRARY, limits=limits)


def _with_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the parts of a step in milliseconds, which add up to it.

    What a step waits for its mini-batch is divided as making the mini-batch was. With a library's
    loader, which does not time its sampling, the ranks copy features themselves, and the rest of
    the wait is for the loader.
    """
    ms, waited = 1e3, rows["data_s"]
    known = rows["gather_s"] / (rows["sample_s"] + rows["gather_s"])
    copied = (waited * known).fillna(rows["gather_s"].clip(upper=waited)).fillna(0.0)
    left = rows["mean_s"] - waited - rows["compute_s"] - rows["allreduce_s"]
    return rows.assign(
        mean_ms=ms * rows["mean_s"],
        low_ms=ms * rows["mean_low"],
        high_ms=ms * rows["mean_high"],
        sampling=ms * (waited - copied),
        gathering=ms * copied,
        computing=ms * rows["compute_s"],
        averaging=ms * rows["allreduce_s"],
        rest=ms * left.clip(lower=0.0),
    )

"""Figures of a step's time: its spread, and where it is lost. Docstrings are their captions."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.colours_and_style import (
    FULL_IN,
    GREY,
    figure_width,
    layout_order,
    layout_style,
    new_figure,
    styled,
)
from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import panel_grid
from analysis.render.number_text import significant
from analysis.summary.settings_in_words import settings_label
from analysis.summary.time_breakdown import COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BOXES = 36
_NAMES_WIDTH, _LETTER_IN = 0.45, 0.08
"""Share of a figure's width for the rows' names, and a letter's width."""


def step_times(group: ModelOnData) -> Figure | str:
    """Spread of the training steps after warm-up, barrier to barrier, which says nothing about how
    runs differ; m is the number of micro-batches. Boxes span the quartiles, whiskers 1.5 times
    that; every step beyond is drawn, none is dropped. The median is that of the steps of all runs
    together; in tables it is the mean of the runs' medians.
    """
    steps = group.steps[(group.steps["kept"] & ~group.steps["uneven"]).astype(bool)]
    steps = steps[steps["phase"] == "train"]
    if steps.empty:
        return "no step after warm-up"
    keys = ["layout", "microbatches", *group.variants]
    groups: Any = steps.groupby(keys, observed=True, dropna=False)["step_s"]
    parts = sorted(groups, key=lambda part: layout_order(part[0][0]))
    letters = int(_NAMES_WIDTH * figure_width(FULL_IN) / _LETTER_IN)
    names = []
    for (layout, count, *values), _ in parts[:MAX_BOXES]:
        extra = settings_label(dict(zip(group.variants, values, strict=True)))
        name = ", ".join(filter(None, (f"{layout} m{count}", extra)))
        names.append(textwrap.fill(name, letters, max_lines=4, placeholder=" …"))
    lines = 1 + max(name.count("\n") for name in names)
    with styled():
        figure = new_figure(FULL_IN, 0.9 + (0.07 + 0.13 * lines) * len(names))
        axes = figure.subplots()
        spreads = []
        for place, ((layout, *_), seconds) in enumerate(parts[:MAX_BOXES]):
            median = float(seconds.median())
            spreads.append(100 * (seconds.to_numpy() / median - 1))
            _draw_box(axes, place, layout, spreads[-1])
            axes.text(
                1.01, place, f"{significant(median, 4)}, n {seconds.size}", va="center",
                fontsize=6.5, transform=axes.get_yaxis_transform(),
            )  # fmt: skip
        _compress_far_outliers(axes, spreads)
        axes.text(1.01, 1.0, "median (s)", transform=axes.transAxes, va="bottom", fontsize=6.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        more = f" (the first {MAX_BOXES} of {len(parts)})" if len(parts) > MAX_BOXES else ""
        axes.set_title(group.title + more, loc="left")
        axes.set_xlabel("difference from the median of all steps (%)")
        axes.grid(visible=False, axis="y")
    return figure


def _draw_box(axes: Axes, place: int, layout: str, spread: Any) -> None:
    """Quartiles, whiskers and outliers."""
    style = layout_style(layout)
    box = axes.boxplot(
        spread, positions=[place], orientation="horizontal", widths=0.6,
        patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": style.colour, "hatch": style.hatch, "edgecolor": "white", "lw": 0},
        whiskerprops={"color": style.colour}, capprops={"color": style.colour},
        medianprops={"color": "white"},
        flierprops={"marker": style.marker, "ms": 2.5, "mfc": "none", "mec": style.colour,
                    "mew": 0.5},
    )  # fmt: skip
    for points in box["fliers"]:
        # PDF viewers are slow with thousands of vector marks.
        points.set_rasterized(len(points.get_xdata()) > 300)


def _compress_far_outliers(axes: Axes, spreads: Sequence[Any]) -> None:
    """Use a logarithmic scale beyond the boxes if far outliers would make the boxes too small."""
    usual = max(float(np.quantile(np.abs(spread), 0.75)) for spread in spreads)
    furthest = max(float(np.abs(spread).max()) for spread in spreads)
    if usual > 0 and furthest > 12 * usual:
        axes.set_xscale("symlog", linthresh=2 * usual, linscale=1.5)
        ticks = [-2 * usual, 0.0, 2 * usual, furthest]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()


def waterfall(group: ModelOnData) -> Figure | str:
    """From the best sequential step on as many ranks that lose nothing (linear) to the measured
    step, in parts that add up: the schedule's bubble, up to the bound; recomputed forwards;
    micro-batches, which cost a sequential run too; contention: passes slower when ranks run side by
    side; imbalance of stages; other waiting, as for transfers, with what lies between spans;
    all-reduce; the rest. Pale bars are gains. An arrow means that the interval goes on.
    """
    rows = group.training
    rows = rows[rows["stages"] * rows["replicas"] > 1].dropna(subset=["lost_linear_s"])
    if rows.empty:
        return "no sequential run to take steps of several ranks apart with"
    place = rows["layout"].map(layout_order)
    rows = rows.assign(place=place).sort_values(["place", "microbatches"], kind="stable")
    parts_ms = 1e3 * rows[list(COLUMNS)]
    # The numbers of the parts need room to the right of the longest bar.
    end_ms = 1.3 * max(
        parts_ms.fillna(0.0).cumsum(axis=1).max(axis=None), 1e3 * rows["mean_s"].max()
    )
    with styled():
        titles = [_waterfall_title(group, row) for _, row in rows.iterrows()]
        figure, axes = panel_grid(titles, group.title)
        for one, (_, row) in zip(axes, rows.iterrows(), strict=False):
            _draw_waterfall(one, row, end_ms)
    return figure


def _waterfall_title(group: ModelOnData, row: pd.Series[Any]) -> str:
    variant = settings_label({key: row[key] for key in group.variants if key in row})
    share = "" if math.isnan(row["of_bound"]) else f": {row['of_bound']:.2f} of the bound"
    return ", ".join(filter(None, (f"{row['layout']} m{row['microbatches']}", variant))) + share


def _draw_waterfall(axes: Axes, row: pd.Series[Any], end_ms: float) -> None:
    """Each part begins where the one above it ends, and has its milliseconds next to it."""
    style, last = layout_style(row["layout"]), len(COLUMNS)
    lengths = 1e3 * row[list(COLUMNS)].to_numpy(float)
    known = np.nan_to_num(lengths)
    ends = known.cumsum()
    pale = known < 0
    number: dict[str, Any] = {"va": "center_baseline", "fontsize": 6, "zorder": 5}
    axes.barh(
        range(last), known, left=ends - known, height=0.72, zorder=2,
        color=["#bdbdbd", *((style.colour, 0.45 if each else 1.0) for each in pale[1:])],
        hatch=["", *("" if each else style.hatch for each in pale[1:])],
    )  # fmt: skip
    for place, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        text = "in contention" if math.isnan(length) else significant(length, 3)
        axes.text(max(end, end - known[place]), place, f" {text}", **number)
        axes.plot([end, end], [place - 0.36, place + 1.36], color=GREY, lw=0.5, zorder=3)
    low, mean, high = (1e3 * row[name] for name in ("mean_low", "mean_s", "mean_high"))
    axes.barh(last, mean, height=0.72, color="#8a8a8a", zorder=2)
    if low < high:
        ends_at = [[mean - low], [min(high, end_ms) - mean]]
        axes.errorbar(mean, last, xerr=ends_at, ecolor="black", elinewidth=0.7, capsize=3.6)
    if high > end_ms:
        axes.plot(end_ms, last, marker=">", c="black", ms=5)
    axes.text(0.0, last, f" {significant(mean, 4)}", c="white", **number)
    axes.set_yticks(range(last + 1), [*COLUMNS.values(), "measured"])
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlim(0.0, end_ms)
    axes.set_xlabel("step (ms)")
    axes.grid(visible=False, axis="y")

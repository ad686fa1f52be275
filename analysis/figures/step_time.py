"""Figures of a step's time: its spread, and where it is lost. Docstrings are their captions."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import error_bars, panel_grid
from analysis.figures.style import (
    FULL_IN,
    GREY,
    figure_width,
    layout_order,
    layout_style,
    new_figure,
    styled,
)
from analysis.render.number_text import significant
from analysis.summary.settings_in_words import settings_label
from analysis.summary.time_breakdown import PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BOXES = 36
_NAMES_WIDTH, _LETTER_IN = 0.45, 0.08
"""Share of a figure's width for the rows' names, and a letter's width."""
WATERFALL = {
    "linear": "linear",
    "schedule": "schedule",
    "recomputation": "recomputation",
    "microbatches": "micro-batches",
    "contention": "contention",
    "imbalance": "imbalance",
    "waits": "waits, transfers",
    "allreduce": "all-reduce",
    "rest": "rest",
}
"""The parts of a step and their words, from the ideal to the measured step."""


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
    rows = []
    for values, part in steps.groupby(keys, observed=True, dropna=False):
        extra = settings_label(dict(zip(group.variants, values[2:], strict=True)))
        name = f"{values[0]} m{values[1]}" + (f", {extra}" if extra else "")
        rows.append((layout_order(str(values[0])), name, str(values[0]), part["step_s"].to_numpy()))
    rows = sorted(rows, key=lambda row: row[0])
    with styled():
        letters = int(_NAMES_WIDTH * figure_width(FULL_IN) / _LETTER_IN)
        names = [
            textwrap.fill(row[1], letters, max_lines=4, placeholder=" …")
            for row in rows[:MAX_BOXES]
        ]
        lines = 1 + max(name.count("\n") for name in names)
        figure = new_figure(FULL_IN, 0.9 + (0.07 + 0.13 * lines) * len(names))
        axes = figure.subplots()
        for place, (_, _, layout, seconds) in enumerate(rows[:MAX_BOXES]):
            _draw_box(axes, place, layout, seconds)
        _compress_far_outliers(axes, [row[3] for row in rows[:MAX_BOXES]])
        axes.text(1.01, 1.0, "median (s)", transform=axes.transAxes, va="bottom", fontsize=6.5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_title(group.title, loc="left")
        axes.set_xlabel("difference from the median of all steps (%)")
        if len(rows) > MAX_BOXES:
            figure.suptitle(f"the first {MAX_BOXES} of {len(rows)}", fontsize=7)
        axes.grid(visible=False, axis="y")
    return figure


def _draw_box(axes: Axes, place: int, layout: str, seconds: Any) -> None:
    """Quartiles, whiskers and outliers, with the median in words."""
    style, median = layout_style(layout), float(np.median(seconds))
    box = axes.boxplot(
        100 * (seconds / median - 1), positions=[place], orientation="horizontal", widths=0.6,
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
    axes.text(
        1.01, place, f"{significant(median, 4)}, n {seconds.size}", va="center", fontsize=6.5,
        transform=axes.get_yaxis_transform(),
    )  # fmt: skip


def _compress_far_outliers(axes: Axes, rows: list[Any]) -> None:
    """Use a logarithmic scale beyond the boxes if far outliers would make the boxes too small."""
    apart = [np.abs(100 * (seconds / np.median(seconds) - 1)) for seconds in rows]
    usual = max(float(np.quantile(row, 0.75)) for row in apart)
    furthest = max(float(row.max()) for row in apart)
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
    rows = rows[rows["stages"] * rows["replicas"] > 1].dropna(subset=[f"{PREFIX}linear_s"])
    if rows.empty:
        return "no sequential run to take steps of several ranks apart with"
    order = sorted(
        rows.to_dict("records"),
        key=lambda row: (layout_order(str(row["layout"])), int(row["microbatches"])),
    )
    with styled():
        titles = [_waterfall_title(group, row) for row in order]
        figure, axes = panel_grid(titles, group.title, sharex=True)
        # The numbers of the parts need room to the right of the longest bar.
        end_ms = 1.3 * 1e3 * max(_furthest(row) for row in order)
        for one, row in zip(axes, order, strict=False):
            _draw_waterfall(one, row, end_ms)
        axes[0].set_xlim(0.0, end_ms)
    return figure


def _furthest(row: dict[Any, Any]) -> float:
    """Seconds at which the bars of a row end."""
    parts = np.array([row[f"{PREFIX}{part}_s"] for part in WATERFALL], float)
    return float(max(np.nancumsum(parts).max(), row["mean_s"]))


def _waterfall_title(group: ModelOnData, row: dict[Any, Any]) -> str:
    variant = settings_label({key: row[key] for key in group.variants if key in row})
    share = "" if math.isnan(row["of_bound"]) else f": {row['of_bound']:.2f} of the bound"
    count = int(row["microbatches"])
    name = f"{row['layout']}, {count} micro-batch{'' if count == 1 else 'es'}"
    return f"{name}{', ' + variant if variant else ''}{share}"


def _draw_waterfall(axes: Axes, row: dict[Any, Any], end_ms: float) -> None:
    """Each part begins where the one above it ends, and has its milliseconds next to it."""
    style, at = layout_style(str(row["layout"])), 0.0
    for place, part in enumerate(WATERFALL):
        length = 1e3 * row[f"{PREFIX}{part}_s"]
        if math.isnan(length):
            _number(axes, at, place, "in contention")
            continue
        axes.barh(
            place, length, left=at, height=0.72,
            color="#bdbdbd" if part == "linear" else style.colour,
            alpha=1.0 if length >= 0 else 0.45,
            hatch="" if part == "linear" or length < 0 else style.hatch, zorder=2,
        )  # fmt: skip
        _number(axes, max(at, at + length), place, _plain(length, 3))
        at += length
        axes.plot([at, at], [place - 0.36, place + 1.36], color=GREY, lw=0.5, zorder=3)
    last, mean = len(WATERFALL), 1e3 * row["mean_s"]
    axes.barh(last, mean, height=0.72, color="#8a8a8a", zorder=2)
    bounds = ("mean_low", "mean_high")
    measured = pd.DataFrame([{name: 1e3 * row[name] for name in ("mean_s", *bounds)}])
    error_bars(axes, [last], measured, "mean_s", bounds, (0.0, 0.98 * end_ms), sideways=True)
    _number(axes, 0.0, last, _plain(mean, 4), colour="white")
    axes.set_yticks(range(last + 1), [*WATERFALL.values(), "measured"])
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlabel("step (ms)")
    axes.grid(visible=False, axis="y")


def _plain(number: float, digits: int) -> str:
    """To so many digits, without an exponent where the number is large."""
    return f"{number:.0f}" if abs(number) >= 10**digits else f"{number:.{digits}g}"


def _number(axes: Axes, at: float, place: int, text: str, colour: str = "#202020") -> None:
    axes.annotate(
        text, (at, place), (2.5, 0.0), textcoords="offset points", va="center_baseline", fontsize=6,
        color=colour, zorder=5,
    )  # fmt: skip

"""Panels, one for each combination of settings, and the series of points that are drawn in them.

Rows of a series are tidy: `series` is its name, `x` and `y` are where it is drawn, `low` and `high`
its interval. A `reference` is drawn as a tick; a row that is not `valid` has a hollow marker.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.colours_and_style import (
    COLUMN_IN,
    FULL_IN,
    GREY,
    figure_width,
    layout_styles,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.figures.model_on_data import ModelOnData

MAX_PANELS = 12
"""Four rows of three, which fit on a page."""
_HEIGHT_IN, _NARROWEST_IN, _MOST_ROWS = 2.6, 2.2, 6
_LETTER_IN, _LINE_IN = 0.085, 0.14
"""Width of a title's letter, with the axis labels' share of a panel; height of its line."""
Limits = tuple[float, float]
Styles = Mapping[str, Mapping[str, Any]]
"""Series -> arguments of its line; they are drawn in this order."""


def panel_grid(
    titles: Sequence[str], whole: str, *, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of one column with one panel, or of both columns with three panels a row.

    `whole` is the title of the figure. Titles are broken into lines as wide as a panel. Where there
    are more titles than panels, the figure says so. Call within `styled`.
    """
    count = len(titles)
    width = figure_width(COLUMN_IN if count == 1 else FULL_IN)
    across = max(1, min(3, count, int(width / _NARROWEST_IN)))
    shown = min(count, MAX_PANELS, _MOST_ROWS * across)
    down = math.ceil(shown / across)
    letters = int(width / across / _LETTER_IN)
    broken = [textwrap.fill(one, letters, max_lines=4, placeholder=" …") for one in titles[:shown]]
    lines = max(title.count("\n") for title in broken)
    height = _HEIGHT_IN if count == 1 else 0.5 + 1.9 * down
    figure = new_figure(width, height + lines * down * _LINE_IN)
    axes = list(figure.subplots(down, across, squeeze=False, sharey=sharey).flat)
    for unused in axes[shown:]:
        unused.set_visible(False)
    if shown < count:
        whole += f" (the first {shown} of {count} settings)"
    figure.suptitle(whole, x=0.01, ha="left", fontsize=8)
    for one, title in zip(axes, broken, strict=False):
        one.set_title(title, loc="left")
    return figure, axes[:shown]


def tidy(rows: pd.DataFrame, column: str, ends: str = "", factor: float = 1.0) -> pd.DataFrame:
    """The rows with `factor` times a column and its interval, x_low and x_high, as y, low and high.

    `ends` is the x of the interval where it is not the column.
    """
    names = {"y": column, "low": f"{ends or column}_low", "high": f"{ends or column}_high"}
    return rows.assign(**{key: factor * rows[name] for key, name in names.items()})


def series_figure(
    group: ModelOnData,
    rows: pd.DataFrame,
    labels: tuple[str, str],
    *,
    styles: Styles | None = None,
    ticks: Sequence[Any] = (),
    but: tuple[str, ...] = (),
    zero: bool = True,
    log: bool = False,
    band: bool = False,
    reference: str = "",
    published: pd.DataFrame | None = None,
    panels: Sequence[tuple[str, pd.DataFrame]] = (),
) -> Figure:
    """Draw the series in a panel for each combination of settings, but for those in `but`.

    Or in these `panels`, with their titles, each of which has a vertical axis of its own. `labels`
    are of both axes. Series are layouts unless they have `styles`. `ticks` are the values of the
    horizontal axis at equal distances, words or numbers. The vertical one begins at zero, or with
    `zero` off near the lowest value; with `log` it is logarithmic where values span more than a
    factor of ten. `reference` is the name of the references. `published` points have series as
    well, and with a `batch_size` they are in the panels that have it.
    """
    styles = layout_styles(rows["series"]) if styles is None else styles
    parts = list(panels or group.panels(rows, but))
    with styled():
        titles = [title for title, _ in parts]
        figure, axes = panel_grid(titles, group.title, sharey=not panels)
        for one, (_, part) in zip(axes, parts, strict=False):
            scaled = part if panels else rows
            known = [scaled[name] for name in ("y", "reference") if name in scaled]
            values = np.concatenate(known + ([] if published is None else [published["y"]]))
            if log and np.nanmin(values) > 0.0 and np.nanmax(values) > 10.0 * np.nanmin(values):
                limits = (-math.inf, math.inf)
                _scale_logarithmic(one)
            else:
                limits = axis_limits(values, scaled["low"], scaled["high"], zero=zero)
                one.set_ylim(*limits)
            placed = _side_by_side(part, ticks, list(styles)) if ticks else part
            _draw_series(one, placed, styles, limits, band=band)
            if reference:
                one.plot([], [], ls="none", marker="_", ms=10, mew=1.4, c=GREY, label=reference)
            if published is not None:
                _draw_published(one, published, part, styles, ticks)
            one.set_xlabel(labels[0])
            if ticks:
                _place_ticks(one, list(map(str, ticks)))
            elif (rows["x"] % 1 == 0).all():
                one.locator_params(axis="x", integer=True)
        axes[0].set_ylabel(labels[1])
        add_legend(figure, axes)
    return figure


def _side_by_side(rows: pd.DataFrame, ticks: Sequence[Any], names: list[str]) -> pd.DataFrame:
    """The rows at the places 0, 1, ... of their ticks, those of one tick next to one another."""
    rows = rows.sort_values("series", key=lambda series: series.map(names.index), kind="stable")
    of_tick = rows.groupby("x")
    count = of_tick["x"].transform("size")
    shift = (of_tick.cumcount() - (count - 1) / 2) * (0.6 / count).clip(upper=0.12)
    return rows.assign(x=rows["x"].map(list(ticks).index) + shift)


def _draw_series(
    axes: Axes, rows: pd.DataFrame, styles: Styles, limits: Limits, *, band: bool = False
) -> None:
    """Draw a line with markers and intervals for each series, or with a band from low to high."""
    for number, (name, style) in enumerate(styles.items()):
        mine = rows[rows["series"] == name].sort_values("x")
        if mine.empty:
            continue
        line = {"label": name, **style}
        if band:
            # Markers at different places for each series keep equal curves apart.
            every = max(1, len(mine) // 6)
            line |= {"ms": 3, "markevery": (number % every, every)}
            axes.fill_between(
                mine["x"], mine["low"], mine["high"], color=line["color"], alpha=0.12, lw=0
            )
        else:
            _error_bars(axes, mine, limits)
        if "reference" in mine:
            ticks = {"ls": "none", "marker": "_", "ms": 12, "mew": 1.3, "c": line["color"]}
            axes.plot(mine["x"], mine["reference"], **ticks)
        axes.plot(mine["x"], mine["y"], **line)
        if "valid" in mine:
            hollow = mine[~mine["valid"].astype(bool)]
            mark = {"marker": line["marker"], "mfc": "white", "mec": line["color"], "zorder": 3}
            axes.plot(hollow["x"], hollow["y"], ls="none", **mark)


def _draw_published(
    axes: Axes, published: pd.DataFrame, part: pd.DataFrame, styles: Styles, ticks: Sequence[Any]
) -> None:
    """Crosses in the colour of the series of the same name, or in grey, right of their ticks."""
    if "batch_size" in published:
        published = published[published["batch_size"].isin(part["batch_size"])]
    for name, points in published.groupby("series"):
        across = points["x"].map(list(ticks).index) + 0.22 if ticks else points["x"]
        colour = styles.get(str(name), {}).get("color", GREY)
        cross = {"ls": "none", "marker": "x", "ms": 4, "color": colour, "label": "published"}
        axes.plot(across, points["y"], **cross)


def _place_ticks(axes: Axes, words: Sequence[str]) -> None:
    """Label the places 0, 1, ... of the horizontal axis, long words at an angle."""
    axes.set_xticks(range(len(words)), words)
    axes.set_xlim(-0.5, len(words) - 0.5)
    axes.grid(visible=False, axis="x")
    longest = max(len(line) for word in words for line in word.split("\n"))
    axes.tick_params(axis="x", rotation=45 if longest * len(words) > 40 else 0)


def axis_limits(marks: Any, lows: Any, highs: Any, *, zero: bool = True) -> Limits:
    """Limits around every mark, and around intervals as far as they do not stretch the axis.

    An interval may take as much room as all marks do; with `zero` the axis begins there.
    """
    drawn = np.asarray(marks, float)
    drawn = drawn[np.isfinite(drawn)]
    least, most = float(drawn.min()), float(drawn.max())
    room = most if zero else max(most - least, 0.1 * abs(most))
    top = min(most + 0.6 * room, np.nanmax([most, *highs])) + 0.05 * room
    bottom = max(least - 0.6 * room, np.nanmin([least, *lows])) - 0.05 * room
    return (0.0 if zero else float(bottom)), float(top)


def _scale_logarithmic(axes: Axes) -> None:
    """A logarithmic scale with plain numbers: 0.5 and 20, no powers of ten."""
    from matplotlib.ticker import FuncFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    between = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
    axes.yaxis.set_minor_formatter(between)


def _error_bars(axes: Axes, rows: pd.DataFrame, limits: Limits) -> None:
    """Draw bars from `low` to `high`; rows without them get none.

    One that goes on beyond `limits` ends in an arrow there. Their lines are behind the markers.
    Their caps are in front, with a white edge, so that an interval smaller than its marker is seen.
    """
    from matplotlib.patheffects import withStroke

    x, y, low, high = (rows[name].to_numpy(dtype=float) for name in ("x", "y", "low", "high"))
    known = low < high
    if not known.any():
        return
    x, y, low, high = x[known], y[known], low[known], high[known]
    ends = np.clip([y - np.maximum(low, limits[0]), np.minimum(high, limits[1]) - y], 0, None)
    drawn = axes.errorbar(
        x, y, ends, ls="none", ecolor="black", elinewidth=0.7, capsize=3.6, capthick=0.7, zorder=4
    )
    for cap in drawn.lines[1]:
        cap.set_path_effects([withStroke(linewidth=1.3, foreground="white")])
    for line in drawn.lines[2]:
        line.set_zorder(1.9)
    for beyond, end, marker in (
        (low < limits[0], limits[0], "v"),
        (high > limits[1], limits[1], "^"),
    ):
        if beyond.any():
            axes.plot(
                x[beyond], np.full(beyond.sum(), end), ls="none", marker=marker, ms=5.0, zorder=5,
                mfc="black", mec="white", mew=0.4, clip_on=False,
            )  # fmt: skip


def add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Add one legend under all panels, with each label once."""
    seen: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    # All columns are as wide as the widest label with its handle, inches.
    widest = max(map(len, seen)) * 0.058 + 0.38
    rows = math.ceil(len(seen) / max(1, int(figure.get_figwidth() / widest)))
    columns = math.ceil(len(seen) / rows)
    figure.legend(
        seen.values(), seen.keys(), loc="outside lower center", ncols=columns, columnspacing=1.0,
        handletextpad=0.5,
    )  # fmt: skip

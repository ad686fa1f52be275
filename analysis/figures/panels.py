"""Panels, axes, error bars, legends and the numbers behind marks, which figures share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from analysis.figures.style import (
    COLUMN_IN,
    FULL_IN,
    GREY,
    figure_width,
    layout_order,
    layout_style,
    new_figure,
)
from analysis.render.document import Mark
from analysis.render.number_text import interval_text
from analysis.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 12
"""Four rows of three, which fit on a page."""
EVERYWHERE = (-math.inf, math.inf)
_BLACK = "#000000"
_IN_FRONT = 4
"""Order of drawing: in front of lines and marks."""
_ARROW: dict[str, Any] = {
    "ls": "none", "ms": 5.0, "mfc": _BLACK, "mec": "white", "mew": 0.4,
    "zorder": _IN_FRONT + 1, "clip_on": False,
}  # fmt: skip
"""Mark of an interval that goes on beyond the axis."""
_HEIGHT_IN, _NARROWEST_IN, _MOST_ROWS = 2.6, 2.2, 6
_CHARACTER_IN, _LINE_IN, _TITLE_LINES = 0.085, 0.14, 4
"""Width that a title's character takes at most, with the axis labels' share of a panel; height of a
title's line."""
Limits = tuple[float, float]


def panel_grid(
    count: int, *, sharex: bool = False, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of one column with one panel, or of both columns with three panels a row.

    Call within `styled`.
    """
    width = figure_width(COLUMN_IN if count == 1 else FULL_IN)
    across = max(1, min(3, count, int(width / _NARROWEST_IN)))
    count = min(count, MAX_PANELS, _MOST_ROWS * across)
    down = math.ceil(count / across)
    figure = new_figure(width, _HEIGHT_IN if count == 1 else 0.5 + 1.9 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=sharey)
    flat = list(axes.flat)
    for unused in flat[count:]:
        unused.set_visible(False)
    for lowest in flat[max(0, count - across) : count]:
        # One with an unused panel below it has its numbers hidden by `sharex`.
        lowest.tick_params(labelbottom=True)
    return figure, flat[:count]


def title_panels(figure: Figure, axes: Sequence[Axes], titles: Sequence[str], whole: str) -> None:
    """Set the panels' titles, and `whole` as title of the figure or of its only panel.

    Titles are broken into lines as wide as a panel, for which the figure grows. Where there are
    more titles than panels, the figure says so.
    """
    if len(titles) > len(axes):
        whole += f" (the first {len(axes)} of {len(titles)} settings)"
    if not any(titles):
        for one in axes:
            one.set_title(whole, loc="left")
        return
    across = len({one.get_position().x0 for one in axes})
    characters = int(figure.get_figwidth() / across / _CHARACTER_IN)
    broken = [
        textwrap.wrap(title, characters, max_lines=_TITLE_LINES, placeholder=" …") or [whole]
        for title in titles[: len(axes)]
    ]
    for one, lines in zip(axes, broken, strict=True):
        one.set_title("\n".join(lines), loc="left")
    more = (max(map(len, broken)) - 1) * _LINE_IN * math.ceil(len(axes) / across)
    figure.set_figheight(figure.get_figheight() + more)
    figure.suptitle(whole, x=0.01, ha="left", fontsize=8)


def layouts_in(frame: pd.DataFrame) -> list[str]:
    """Layouts from the smallest to the largest."""
    return sorted({str(name) for name in frame["layout"]}, key=layout_order)


def axis_limits(marks: Any, lows: Any, highs: Any, *, zero: bool = True) -> Limits:
    """Limits around every mark, and around intervals as far as they do not stretch the axis.

    An interval may take as much room as all marks do; with `zero` the axis begins there.
    """
    drawn = np.asarray(marks, float)
    drawn = drawn[np.isfinite(drawn)]
    least, most = (float(drawn.min()), float(drawn.max())) if drawn.size else (0.0, 1.0)
    room = most if zero else max(most - least, 0.1 * abs(most))
    bounds = np.concatenate([np.asarray(each, float).ravel() for each in (lows, highs)])
    bounds = bounds[np.isfinite(bounds)]
    top = min(most + 0.6 * room, max(most, float(bounds.max(initial=most)))) + 0.05 * room
    bottom = max(least - 0.6 * room, min(least, float(bounds.min(initial=least)))) - 0.05 * room
    return (0.0 if zero else bottom), top


def plot_against_microbatches(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    every: pd.DataFrame,
    *,
    interval: tuple[str, str] | None = None,
    reference: str | None = None,
    limits: Limits = EVERYWHERE,
) -> None:
    """Plot a line a layout against micro-batches, with intervals, and `reference` as ticks.

    Where no layout of several ranks has several numbers of micro-batches the axis is the layout.
    `every` has the rows of all panels, which decide this. Counts are at equal distances, layouts
    side by side so that their intervals can be seen. Marks of rows that are not valid are hollow.
    """
    names = layouts_in(every)
    several = every[every["stages"] * every["replicas"] > 1].groupby("layout")["microbatches"]
    by_layout = bool((several.nunique() == 1).all())
    counts = sorted({int(m) for m in every["microbatches"]})
    known = set(zip(every["layout"], every["microbatches"], strict=True))
    pairs = [(name, m) for name in names for m in counts if (name, m) in known]
    for number, name in enumerate(names):
        mine = rows[rows["layout"] == name].sort_values("microbatches")
        if mine.empty:
            continue
        shift = (number - (len(names) - 1) / 2) * min(0.12, 0.5 / len(names))
        across = [
            float(pairs.index((name, m))) if by_layout else counts.index(int(m)) + shift
            for m in mine["microbatches"]
        ]
        style = layout_style(name)
        if reference is not None:
            axes.plot(
                across, mine[reference], ls="none", marker="_", ms=12, mew=1.3, c=style.colour
            )
        axes.plot(
            across, mine[column], color=style.colour, marker=style.marker,
            ls="none" if by_layout or len(mine) == 1 else style.dash,
            label=f"_{name}" if by_layout else name,
        )  # fmt: skip
        for x, value, valid in zip(across, mine[column], mine["valid"], strict=True):
            if not valid:
                axes.plot(x, value, marker=style.marker, mfc="white", mec=style.colour, zorder=3)
        if interval is not None:
            error_bars(axes, across, mine, column, interval, limits)
        keep_words(axes, row_words(across, mine, "microbatches", column, interval, reference))
    if by_layout:
        labels = [f"{name}\nm {m}" if len(counts) > 1 else name for name, m in pairs]
        turned = max(map(len, names)) * len(pairs) > 40
        axes.set_xticks(range(len(pairs)), labels, rotation=45 if turned else 0)
        axes.set_xlim(-0.5, len(pairs) - 0.5)
    else:
        step = math.ceil(len(counts) / 10)
        axes.set_xticks(range(0, len(counts), step), [str(m) for m in counts[::step]])
        axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.set_xlabel(_across_label(every, by_layout))
    axes.grid(visible=False, axis="x")


def _across_label(every: pd.DataFrame, by_layout: bool) -> str:
    graphs = "batch_size" in every and bool(every["batch_size"].isna().all())
    words = "chunks a replica" if graphs else "micro-batches a mini-batch"
    if not by_layout:
        return words
    counts = sorted({int(m) for m in every["microbatches"]})
    return f"layout (m: {words})" if len(counts) > 1 else f"layout ({counts[0]} {words})"


def count_in_decades(axes: Axes) -> None:
    """A logarithmic scale upward, whose numbers are plain ones: 0.5 and 20, no powers of ten."""
    from matplotlib.ticker import FuncFormatter

    axes.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    between = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(between)


def error_bars(
    axes: Axes,
    across: Sequence[float],
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    limits: Limits = EVERYWHERE,
    *,
    sideways: bool = False,
) -> None:
    """Draw bars from the lower to the upper column of `interval`; rows without bounds get none.

    One that goes on beyond `limits` ends in an arrow there. They are in front of the marks, with a
    white edge, so that an interval smaller than its mark is seen, in grey too. `sideways`: along
    the horizontal axis.
    """
    from matplotlib.patheffects import withStroke

    low, high = (rows[name].to_numpy(dtype=float) for name in interval)
    known = low < high
    if not known.any():
        return
    value, places = rows[column].to_numpy(dtype=float)[known], np.asarray(across)[known]
    low, high = low[known], high[known]
    ends = np.clip(
        [value - np.maximum(low, limits[0]), np.minimum(high, limits[1]) - value], 0, None
    )
    points = (value, places) if sideways else (places, value)
    drawn = axes.errorbar(
        *points, **{"xerr" if sideways else "yerr": ends}, ls="none", ecolor=_BLACK,
        elinewidth=0.7, capsize=3.6, capthick=0.7, zorder=_IN_FRONT,
    )  # fmt: skip
    for part in (*drawn.lines[1], *drawn.lines[2]):
        part.set_path_effects([withStroke(linewidth=1.3, foreground="white")])
    for beyond, end, marker in (
        (low < limits[0], limits[0], "<" if sideways else "v"),
        (high > limits[1], limits[1], ">" if sideways else "^"),
    ):
        at = places[beyond]
        ends_at = np.full(len(at), end)
        if len(at):
            axes.plot(*((ends_at, at) if sideways else (at, ends_at)), marker=marker, **_ARROW)


def add_legend(figure: Figure, axes: Sequence[Axes], extra: Sequence[Any] = ()) -> None:
    """Add one legend under all panels: each label once, then the `extra` handles."""
    seen: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    for handle in extra:
        seen.setdefault(handle.get_label(), handle)
    if not seen:
        return
    # All columns are as wide as the widest label with its handle, inches.
    widest = max(len(name) for name in seen) * 0.058 + 0.38
    across = max(1, int(figure.get_figwidth() / widest))
    rows = math.ceil(len(seen) / across)
    figure.legend(
        seen.values(),
        seen.keys(),
        loc="outside lower center",
        ncols=math.ceil(len(seen) / rows),
        columnspacing=1.0,
        handletextpad=0.5,
    )


def legend_entry(label: str, **style: Any) -> Any:
    """A legend entry of a line or mark, grey unless `style` says otherwise."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{"color": GREY, "label": label, **style})


def reference_handle(label: str) -> Any:
    """The legend entry of a reference tick."""
    return legend_entry(label, ls="none", marker="_", ms=10, mew=1.4)


Words = tuple[float, float, str]
"""Data coordinates of a mark, and what a page says when a reader points at it."""
_WORDS: WeakKeyDictionary[Axes, list[Words]] = WeakKeyDictionary()


def keep_words(axes: Axes, words: Iterable[Words]) -> None:
    """Keep what marks of these axes say; `marks_of` finds it again."""
    _WORDS.setdefault(axes, []).extend(words)


def row_words(
    across: Sequence[float],
    rows: pd.DataFrame,
    count: str,
    column: str,
    interval: tuple[str, str] | None,
    reference: str | None = None,
) -> Iterator[Words]:
    """Layout, count, value with its interval, and reference of the mark of each row."""
    for x, row in zip(across, rows.to_dict("records"), strict=True):
        value = float(row[column])
        bounds = [float(row[name]) for name in interval or ()]
        known = bool(bounds) and all(map(math.isfinite, bounds))
        low, high = bounds if known else (None, None)
        shown = Interval(value, low, high)
        words = f"{row['layout']}, {int(row[count])}: {interval_text(shown)}"
        if reference is not None:
            words += f"; {reference} {interval_text(Interval(float(row[reference]), None, None))}"
        yield x, value, words


def marks_of(figure: Figure) -> tuple[Mark, ...]:
    """What the marks of a figure say; call when its layout is final."""
    found = []
    for axes in figure.axes:
        for x, y, text in _WORDS.get(axes, []):
            across, up = axes.transData.transform((x, y))
            place = across / figure.bbox.width, 1.0 - up / figure.bbox.height
            if all(0.0 <= share <= 1.0 for share in place):
                found.append(Mark(*place, text))
    return tuple(found)

"""Panels, error bars and legends that several figures share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.hover import tell, told_of_rows
from analysis.figures.style import (
    COLUMN_IN,
    FULL_IN,
    figure_width,
    layout_look,
    layout_order,
    new_figure,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 12
"""Four rows of three, which fit on a page."""
INTERVAL_COLOUR = "#000000"
INTERVAL_CAP_PT = 3.6
"""Half the width of an interval's caps, points; marks are 5 wide."""
IN_FRONT = 4
"""Order of drawing: in front of lines and marks."""
GOES_ON_UP, GOES_ON_RIGHT = "^", ">"
ARROW: dict[str, Any] = {
    "ls": "none", "ms": 5.0, "mfc": INTERVAL_COLOUR, "mec": "white", "mew": 0.4,
    "zorder": IN_FRONT + 1, "clip_on": False,
}  # fmt: skip
"""Of an interval that goes on beyond the axis."""
_HEIGHT_IN = 2.6
_MOST_ROWS = 6
_NARROWEST_IN = 2.2
"""Width of a panel whose labels can be read."""
_CHARACTER_IN = 0.085
"""Width that a title's character takes at most, with the axis labels' share of a panel."""
_LINE_IN = 0.14
_TITLE_LINES = 4


def panel_grid(count: int, *, sharex: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of one column with one panel, or of both columns with three panels a row.

    All share the vertical axis, with `sharex` the other one too.

    Call within `styled`.
    """
    width = figure_width(COLUMN_IN if count == 1 else FULL_IN)
    across = max(1, min(3, count, int(width / _NARROWEST_IN)))
    count = min(count, MAX_PANELS, _MOST_ROWS * across)
    down = math.ceil(count / across)
    figure = new_figure(width, _HEIGHT_IN if count == 1 else 0.5 + 1.9 * down)
    axes = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=True)
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


def plot_by_microbatches(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    *,
    interval: tuple[str, str] | None = None,
    reference: str | None = None,
    positions: Sequence[int] | None = None,
    top: float = math.inf,
) -> None:
    """Plot a line a layout against micro-batches, with intervals, and `reference` as ticks.

    Intervals that go on beyond `top`, the axis's upper end, end in an arrow there.

    Counts are at equal distances, layouts side by side so that their intervals can be seen. Marks
    of rows that are not valid, such as an unexplained speedup above its bound, are hollow.
    """
    counts = list(positions) if positions else sorted({int(m) for m in rows["microbatches"]})
    place = {count: number for number, count in enumerate(counts)}
    names = layouts_in(rows)
    for number, name in enumerate(names):
        mine = rows[rows["layout"] == name].sort_values("microbatches")
        shift = (number - (len(names) - 1) / 2) * min(0.12, 0.5 / len(names))
        across = [place[int(m)] + shift for m in mine["microbatches"]]
        style = layout_look(name)
        if reference is not None:
            axes.plot(
                across, mine[reference], ls="none", marker="_", ms=12, mew=1.3, c=style.colour
            )
        axes.plot(
            across,
            mine[column],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dash if len(mine) > 1 else "none",
            label=name,
        )
        not_valid = (~mine["valid"].astype(bool)).to_numpy()
        if not_valid.any():
            axes.plot(
                np.array(across)[not_valid],
                mine[column][not_valid],
                ls="none",
                marker=style.marker,
                mfc="white",
                mec=style.colour,
                zorder=3,
            )
        if interval is not None:
            error_bars(axes, across, mine, column, interval, top)
        tell(axes, told_of_rows(across, mine, "microbatches", column, interval, reference))
    every = math.ceil(len(counts) / 10)
    axes.set_xticks(range(0, len(counts), every), [str(m) for m in counts[::every]])
    axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.grid(visible=False, axis="x")


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
    top: float = math.inf,
) -> None:
    """Draw bars from the lower to the upper column of `interval`; rows without bounds get none.

    One that goes on beyond `top` ends in an arrow there. They are in front of the marks, with caps
    wider than these and a white edge, so that an interval smaller than its mark is seen, in grey
    too.
    """
    from matplotlib.patheffects import withStroke

    low, high = (rows[name].to_numpy(dtype=float) for name in interval)
    known = low < high
    value, places = rows[column].to_numpy(dtype=float)[known], np.asarray(across)[known]
    if not known.any():
        return
    cut = high > top
    high = np.minimum(high, top)
    drawn = axes.errorbar(
        places,
        value,
        yerr=np.clip([value - low[known], high[known] - value], 0.0, None),
        ls="none",
        ecolor=INTERVAL_COLOUR,
        elinewidth=0.7,
        capsize=INTERVAL_CAP_PT,
        capthick=0.7,
        zorder=IN_FRONT,
    )
    for part in (*drawn.lines[1], *drawn.lines[2]):
        part.set_path_effects([withStroke(linewidth=1.3, foreground="white")])
    beyond = np.asarray(across)[known & cut]
    if len(beyond):
        axes.plot(beyond, np.full(len(beyond), top), marker=GOES_ON_UP, **ARROW)


def add_legend(figure: Figure, axes: Sequence[Axes], extra: Sequence[Any] = ()) -> None:
    """Add one legend under all panels: each label once, then the `extra` handles."""
    seen: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            seen.setdefault(label, handle)
    for handle in extra:
        seen.setdefault(handle.get_label(), handle)
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


def reference_handle(label: str) -> Any:
    """The legend entry of a reference tick."""
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="none", marker="_", ms=10, mew=1.4, c="#606060", label=label)

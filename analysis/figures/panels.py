"""Panels, axes, error bars and legends, which figures share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.style import (
    COLUMN_IN,
    FULL_IN,
    GREY,
    figure_width,
    layout_order,
    layout_style,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.figures.model_on_data import ModelOnData

MAX_PANELS = 12
"""Four rows of three, which fit on a page."""
EVERYWHERE = (-math.inf, math.inf)
_HEIGHT_IN, _NARROWEST_IN, _MOST_ROWS = 2.6, 2.2, 6
_LETTER_IN, _LINE_IN = 0.085, 0.14
"""Width of a title's letter, with the axis labels' share of a panel; height of its line."""
_ARROW: dict[str, Any] = {
    "ls": "none", "ms": 5.0, "mfc": "black", "mec": "white", "mew": 0.4, "zorder": 5,
    "clip_on": False,
}  # fmt: skip
"""Style of the arrow of an interval that goes on beyond the axis."""
Limits = tuple[float, float]


def panel_grid(
    titles: Sequence[str], whole: str, *, sharex: bool = False, sharey: bool = True
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
    axes = list(figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for unused in axes[shown:]:
        unused.set_visible(False)
    for lowest in axes[max(0, shown - across) : shown]:
        # One with an unused panel below it has its numbers hidden by `sharex`.
        lowest.tick_params(labelbottom=True)
    if shown < count:
        whole += f" (the first {shown} of {count} settings)"
    if any(broken):
        figure.suptitle(whole, x=0.01, ha="left", fontsize=8)
        for one, title in zip(axes, broken, strict=False):
            one.set_title(title, loc="left")
    else:
        axes[0].set_title(whole, loc="left")
    return figure, axes[:shown]


def draw_panels(
    group: ModelOnData,
    rows: pd.DataFrame,
    draw: Callable[[Axes, pd.DataFrame], None],
    label: str,
    *,
    but: tuple[str, ...] = (),
    limits: Limits | None = None,
    legend: Sequence[Any] = (),
) -> Figure:
    """A figure with a panel for each combination of settings, which `draw` fills.

    Settings in `but` have no panels of their own. `limits` and `label` are of the vertical axis.
    """
    parts = list(group.panels(rows, but))
    with styled():
        figure, axes = panel_grid([title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            draw(one, part)
        axes[0].set_ylabel(label)
        if limits is not None and limits[0] < limits[1]:
            axes[0].set_ylim(*limits)
        add_legend(figure, axes, legend)
    return figure


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
    top = min(most + 0.6 * room, np.nanmax([most, *highs])) + 0.05 * room
    bottom = max(least - 0.6 * room, np.nanmin([least, *lows])) - 0.05 * room
    return (0.0 if zero else float(bottom)), float(top)


def plot_against_microbatches(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    every: pd.DataFrame,
    limits: Limits,
    reference: str | None = None,
) -> None:
    """Plot a line a layout against micro-batches, with intervals, and `reference` as ticks.

    Where no layout of several ranks has several numbers of micro-batches the axis is the layout.
    `every` has the rows of all panels, which decide this. Counts are at equal distances, layouts
    side by side so that their intervals can be seen. Markers of rows that are not valid are hollow.
    """
    names = layouts_in(every)
    of_layouts = every[every["stages"] * every["replicas"] > 1].groupby("layout")["microbatches"]
    by_layout = bool((of_layouts.nunique() == 1).all())
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
        error_bars(axes, across, mine, column, (f"{column}_low", f"{column}_high"), limits)
    graphs = bool(every["batch_size"].isna().all())
    one, several = ("chunk", "chunks") if graphs else ("micro-batch", "micro-batches")
    words = f"{several} a {'replica' if graphs else 'mini-batch'}"
    if by_layout:
        many = len(counts) > 1
        turned = max(map(len, names)) * len(pairs) > 40
        labels = [f"{name}\nm {m}" if many else name for name, m in pairs]
        same = f"{counts[0]} {one if counts[0] == 1 else several}"
        count_ticks(axes, labels, f"layout ({f'm: {several}' if many else same})")
        axes.tick_params(axis="x", rotation=45 if turned else 0)
    else:
        step = math.ceil(len(counts) / 10)
        labels = ["" if place % step else str(m) for place, m in enumerate(counts)]
        count_ticks(axes, labels, words)


def count_ticks(axes: Axes, labels: Sequence[str], title: str) -> None:
    """Label the places 0, 1, ... of the horizontal axis."""
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_xlabel(title)
    axes.grid(visible=False, axis="x")


def scale_upward(axes: Axes, values: Sequence[float]) -> None:
    """A scale from zero, or a logarithmic one where values span more than a factor of ten.

    Its numbers are plain ones: 0.5 and 20, no powers of ten.
    """
    from matplotlib.ticker import FuncFormatter

    if max(values) <= 10.0 * min(values):
        axes.set_ylim(bottom=0.0)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    between = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
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

    One that goes on beyond `limits` ends in an arrow there. Their lines are behind the markers.
    Their caps are in front, with a white edge, so that an interval smaller than its marker is seen.
    `sideways`: along the horizontal axis, on bars.
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
        *points, **{"xerr" if sideways else "yerr": ends}, ls="none", ecolor="black",
        elinewidth=0.7, capsize=3.6, capthick=0.7, zorder=4,
    )  # fmt: skip
    lines, caps = drawn.lines[2], drawn.lines[1]
    for part in (*caps, *(lines if sideways else ())):
        part.set_path_effects([withStroke(linewidth=1.3, foreground="white")])
    for line in () if sideways else lines:
        line.set_zorder(1.9)
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
    seen |= {handle.get_label(): handle for handle in extra}
    if not seen:
        return
    # All columns are as wide as the widest label with its handle, inches.
    widest = max(map(len, seen)) * 0.058 + 0.38
    rows = math.ceil(len(seen) / max(1, int(figure.get_figwidth() / widest)))
    columns = math.ceil(len(seen) / rows)
    figure.legend(
        seen.values(), seen.keys(), loc="outside lower center", ncols=columns, columnspacing=1.0,
        handletextpad=0.5,
    )  # fmt: skip


def legend_entry(label: str, **style: Any) -> Any:
    """A legend entry of a line or marker, grey unless `style` says otherwise."""
    with styled():
        from matplotlib.lines import Line2D

        return Line2D([], [], **{"color": GREY, "label": label, **style})

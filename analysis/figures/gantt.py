"""Draws a timeline: a row a rank, the measured step above the ideal one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figures.step_timeline import Bar, RankRow, Timeline
from analysis.figures.studies import study_title
from analysis.figures.style import (
    ACTION_COLOURS,
    FULL_IN,
    NARROW_IN,
    figure_width,
    new_figure,
    styled,
)
from analysis.summary.split_backward import LEAST_SHARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_RANKS = 16
"""The most rows that are readable on a page; the Chrome trace has all ranks."""
_ROW_IN = 0.24
_BESIDE_IN = 1.2
"""What labels take of a figure's width, inches."""
_NUMBER_IN = 0.065
"""Width of a digit of a micro-batch number, inches."""
_LINE, _LINES_APART = 0.05, 0.13
"""Height of a line across a bar, and from one to the next, in rows."""
_DASHES = (
    "A dash at a number, and a line across the foot of a bar, is for each part of its stage before "
    "its own: 3' is micro-batch 3 in the second part."
)
"""What a caption says of stages of several parts."""
_WEIGHTS = "Backward is of inputs alone; the gradients of weights come later, by themselves."
_HARDLY_WEIGHTS = (
    "Its layers compute the gradients of inputs and weights in one, so that next to nothing comes "
    "later as weights."
)
"""What a caption says where they are apart, and where they are so in name."""


def draw_timeline(timeline: Timeline) -> Figure:
    """Measured above, ideal below, on one time axis; micro-batch numbers where they fit.

    A stage's later parts have a dash at the number and a line across the foot for each before them.
    """
    with styled():
        rows = timeline.rows[:MAX_RANKS]
        panels = 2 if timeline.ideal else 1
        figure = new_figure(FULL_IN, 1.1 + panels * (0.3 + _ROW_IN * len(rows)))
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        unit, scale = ("ms", 1e3) if timeline.wall_s < 1 else ("s", 1.0)
        _draw_panel(axes[0], rows, timeline.measured, timeline.wall_s, scale)
        axes[0].set_title(_measured_title(timeline), loc="left")
        if timeline.ideal:
            assert timeline.ideal_s is not None
            _draw_panel(axes[1], rows, timeline.ideal, timeline.ideal_s, scale, timeline.wall_s)
            axes[1].set_title(_ideal_title(timeline), loc="left")
        axes[-1].set_xlabel(f"time since the step's first barrier ({unit})")
        axes[-1].set_xlim(0, timeline.wall_s * scale)
        _legend(figure, timeline)
    return figure


def _draw_panel(
    axes: Axes,
    rows: Sequence[RankRow],
    bars: Sequence[Bar],
    end_s: float,
    scale: float,
    across_s: float | None = None,
) -> None:
    """One row a rank; waiting is drawn up to `end_s` and the bars over it."""
    place = {row.rank: number for number, row in enumerate(rows)}
    inches = (figure_width(FULL_IN) - _BESIDE_IN) / (across_s or end_s)
    for number in place.values():
        axes.broken_barh([(0, end_s * scale)], (number - 0.4, 0.8), color=ACTION_COLOURS["wait"])
    for name, colour in ACTION_COLOURS.items():
        for rank, number in place.items():
            mine = [bar for bar in bars if bar.rank == rank and bar.name == name]
            axes.broken_barh(
                [(bar.start_s * scale, (bar.end_s - bar.start_s) * scale) for bar in mine],
                (number - 0.4, 0.8),
                facecolors=colour,
                edgecolors="white",
                linewidth=0.3,
            )
            _lines_of_parts(axes, mine, number, scale)
            for bar in mine:
                _microbatch_number(axes, bar, number, scale, inches)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [_row_label(row, rows) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def _lines_of_parts(axes: Axes, bars: Sequence[Bar], row: int, scale: float) -> None:
    """They are seen where there is no room for a number, in grey too."""
    for line in range(max((bar.part for bar in bars), default=0)):
        over = [bar for bar in bars if bar.part > line]
        axes.broken_barh(
            [(bar.start_s * scale, (bar.end_s - bar.start_s) * scale) for bar in over],
            (row + 0.4 - (line + 1) * _LINES_APART, _LINE),
            facecolors="white",
        )


def _microbatch_number(axes: Axes, bar: Bar, row: int, scale: float, inches: float) -> None:
    text = bar.number
    if not text or bar.name == "wait":
        return
    # A dash is half as wide as a digit.
    digits = len(text) - bar.part / 2
    if (bar.end_s - bar.start_s) * inches < _NUMBER_IN * (digits + 0.4):
        return
    axes.text(
        (bar.start_s + bar.end_s) / 2 * scale,
        row,
        text,
        ha="center",
        va="center_baseline",
        fontsize=6.5,
        color="white" if bar.name == "backward" else "black",
    )


def _row_label(row: RankRow, rows: Sequence[RankRow]) -> str:
    replicas = len({other.replica for other in rows}) > 1
    where = f"r{row.replica} s{row.stage}" if replicas else f"stage {row.stage}"
    return f"rank {row.rank} ({where})"


def _measured_title(timeline: Timeline) -> str:
    left_out = len(timeline.rows) - MAX_RANKS
    more = f", first {MAX_RANKS} of {len(timeline.rows)} ranks" if left_out > 0 else ""
    break_line = "\n" if figure_width(FULL_IN) < NARROW_IN else " "
    return (
        f"{study_title(timeline.model, timeline.data)}\n"
        f"{timeline.layout}, {timeline.phase} step {timeline.step}, measured:{break_line}"
        f"{_seconds(timeline.wall_s)}, bubble {_percent(timeline.bubble)}{more}"
    )


def _ideal_title(timeline: Timeline) -> str:
    break_line = "\n" if figure_width(FULL_IN) < NARROW_IN else " "
    break_name = break_line if timeline.parts > 1 else " "
    return (
        f"ideal {_schedule_title(timeline)},{break_name}measured seconds:{break_line}"
        f"{_seconds(timeline.ideal_s)}, bubble {_percent(timeline.ideal_bubble)} "
        f"(equal stages {_percent(timeline.balanced_bubble)})"
    )


def _microbatches(timeline: Timeline) -> str:
    return f"{timeline.microbatches} micro-batch{'es' if timeline.microbatches > 1 else ''}"


def timeline_caption(timeline: Timeline) -> str:
    """What was drawn, what marks the parts of a stage that has several, and what is apart."""
    caption = (
        f"{timeline.layout}, {_microbatches(timeline)}, {_schedule_title(timeline)}: "
        f"training step {timeline.step}, the one nearest the median, above the same schedule with "
        "the measured forward and backward seconds and nothing else."
    )
    if timeline.parts > 1:
        caption += f" {_DASHES}"
    seconds = {
        kind: sum(bar.end_s - bar.start_s for bar in timeline.measured if bar.name == kind)
        for kind in ("backward", "weights")
    }
    if seconds["weights"] > 0:
        apart = seconds["weights"] >= LEAST_SHARE * sum(seconds.values())
        caption += f" {_WEIGHTS if apart else _HARDLY_WEIGHTS}"
    if timeline.drawn_s is not None:
        caption += f" Before that it waited {1e3 * timeline.drawn_s:.3g} ms for its mini-batch."
    return caption


def _schedule_title(timeline: Timeline) -> str:
    name = {"gpipe": "GPipe", "1f1b": "1F1B"}.get(timeline.schedule, timeline.schedule)
    return name if timeline.parts == 1 else f"{name}, {timeline.parts} parts a stage"


def _legend(figure: Figure, timeline: Timeline) -> None:
    from matplotlib.patches import Patch

    names = {bar.name for bar in timeline.measured} | {"wait"}
    words = {"allreduce": "all-reduce", "optimizer": "optimizer"}
    handles = [
        Patch(facecolor=colour, label=words.get(name, name))
        for name, colour in ACTION_COLOURS.items()
        if name in names
    ]
    across = len(handles) if figure.get_figwidth() >= NARROW_IN else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=across)


def _seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"

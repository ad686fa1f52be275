"""Draws the timeline of a step: a row a rank, the measured step above the ideal one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figures.style import FULL_IN, NARROW_IN, figure_width, new_figure, styled
from analysis.figures.timeline_bars import Bar, RankRow, Timeline
from analysis.summary.ideal_step import LEAST_SHARE
from analysis.summary.settings_in_words import study_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_RANKS = 16
"""The most rows that are readable on a page; the Chrome trace has all ranks."""
_COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0a5a8a",
    "weights": "#a9d6b8",
    "allreduce": "#d55e00",
    "optimizer": "#a8a100",
    "wait": "#e6e6e6",
}
_ROW_IN, _BESIDE_IN, _DIGIT_IN = 0.24, 1.2, 0.065
"""Height of a row, what labels take of the width, and the width of a micro-batch number's digit."""
_LINE, _LINES_APART = 0.05, 0.13
"""Height of a line across a bar, and from one to the next, in rows."""


def draw_timeline(timeline: Timeline) -> Figure:
    """Measured above, ideal below, on one time axis; micro-batch numbers where they fit.

    A rank's later virtual stages have a dash at the number and a line across the foot for each
    before them.
    """
    with styled():
        rows = timeline.rows[:MAX_RANKS]
        panels = 2 if timeline.ideal else 1
        figure = new_figure(FULL_IN, 1.1 + panels * (0.3 + _ROW_IN * len(rows)))
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        unit, scale = ("ms", 1e3) if timeline.wall_s < 1 else ("s", 1.0)
        inches = (figure_width(FULL_IN) - _BESIDE_IN) / timeline.wall_s
        _draw_panel(axes[0], rows, timeline.measured, timeline.wall_s, scale, inches)
        axes[0].set_title(_measured_title(timeline), loc="left")
        if timeline.ideal_s is not None:
            _draw_panel(axes[1], rows, timeline.ideal, timeline.ideal_s, scale, inches)
            axes[1].set_title(_ideal_title(timeline), loc="left")
        axes[-1].set_xlabel(f"time since the step's first barrier ({unit})")
        axes[-1].set_xlim(0, timeline.wall_s * scale)
        _add_legend(figure, timeline)
    return figure


def _draw_panel(
    axes: Axes,
    rows: Sequence[RankRow],
    bars: Sequence[Bar],
    end_s: float,
    scale: float,
    inches: float,
) -> None:
    """One row a rank; waiting is drawn up to `end_s` and the bars over it."""
    for number, row in enumerate(rows):
        axes.broken_barh([(0, end_s * scale)], (number - 0.4, 0.8), color=_COLOURS["wait"])
        for name, colour in _COLOURS.items():
            mine = [bar for bar in bars if bar.rank == row.rank and bar.name == name]
            axes.broken_barh(
                [(bar.start_s * scale, (bar.end_s - bar.start_s) * scale) for bar in mine],
                (number - 0.4, 0.8),
                facecolors=colour,
                edgecolors="white",
                linewidth=0.3,
            )
            # Lines of virtual stages are seen where there is no room for a number, in grey too.
            for line in range(max((bar.virtual_stage for bar in mine), default=0)):
                later = [bar for bar in mine if bar.virtual_stage > line]
                axes.broken_barh(
                    [(bar.start_s * scale, (bar.end_s - bar.start_s) * scale) for bar in later],
                    (number + 0.4 - (line + 1) * _LINES_APART, _LINE),
                    facecolors="white",
                )
            for bar in mine:
                _microbatch_number(axes, bar, number, scale, inches)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [_row_label(row, rows) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def _microbatch_number(axes: Axes, bar: Bar, row: int, scale: float, inches: float) -> None:
    # A dash is half as wide as a digit.
    digits = len(bar.number) - bar.virtual_stage / 2
    room = (bar.end_s - bar.start_s) * inches
    if bar.number and bar.name != "wait" and room >= _DIGIT_IN * (digits + 0.4):
        axes.text(
            (bar.start_s + bar.end_s) / 2 * scale, row, bar.number, ha="center", fontsize=6.5,
            va="center_baseline", color="white" if bar.name == "backward" else "black",
        )  # fmt: skip


def _row_label(row: RankRow, rows: Sequence[RankRow]) -> str:
    replicas = len({other.replica for other in rows}) > 1
    where = f"r{row.replica} s{row.stage}" if replicas else f"stage {row.stage}"
    return f"rank {row.rank} ({where})"


def _measured_title(timeline: Timeline) -> str:
    left_out = len(timeline.rows) - MAX_RANKS
    more = f", first {MAX_RANKS} of {len(timeline.rows)} ranks" if left_out > 0 else ""
    return (
        f"{study_title(timeline.model, timeline.data)}\n"
        f"{timeline.layout}, {timeline.phase} step {timeline.step}, measured:{_break()}"
        f"{_seconds(timeline.wall_s)}, bubble {_percent(timeline.bubble)}{more}"
    )


def _ideal_title(timeline: Timeline) -> str:
    break_name = _break() if timeline.virtual_stages > 1 else " "
    return (
        f"ideal {_schedule_title(timeline)},{break_name}measured seconds:{_break()}"
        f"{_seconds(timeline.ideal_s)}, bubble {_percent(timeline.ideal_bubble)} "
        f"(equal stages {_percent(timeline.balanced_bubble)})"
    )


def _break() -> str:
    return "\n" if figure_width(FULL_IN) < NARROW_IN else " "


def timeline_caption(timeline: Timeline) -> str:
    """What is drawn, what marks virtual stages, and what is separate."""
    count = f"{timeline.microbatches} micro-batch{'es' if timeline.microbatches > 1 else ''}"
    caption = (
        f"{timeline.layout}, {count}, {_schedule_title(timeline)}: training step {timeline.step}, "
        "the one nearest the median, above the same schedule with the measured forward and "
        "backward seconds and nothing else."
    )
    if timeline.virtual_stages > 1:
        caption += (
            " 3' is micro-batch 3 in the rank's second virtual stage: a dash at a number, and a "
            "line across the foot of a bar, stand for each virtual stage before it."
        )
    seconds = {
        kind: sum(bar.end_s - bar.start_s for bar in timeline.measured if bar.name == kind)
        for kind in ("backward", "weights")
    }
    if seconds["weights"] >= LEAST_SHARE * sum(seconds.values()) > 0:
        caption += " Backward is of inputs alone; the gradients of weights come later."
    elif seconds["weights"] > 0:
        caption += (
            " Its layers compute the gradients of inputs and weights in one, so that next to "
            "nothing comes later as weights."
        )
    if timeline.sampling_s is not None:
        caption += f" Before that it waited {1e3 * timeline.sampling_s:.3g} ms for its mini-batch."
    return caption


def _schedule_title(timeline: Timeline) -> str:
    name = {"gpipe": "GPipe", "1f1b": "1F1B"}.get(timeline.schedule, timeline.schedule)
    virtual = timeline.virtual_stages
    return name if virtual == 1 else f"{name}, {virtual} virtual stages a rank"


def _add_legend(figure: Figure, timeline: Timeline) -> None:
    from matplotlib.patches import Patch

    names = {bar.name for bar in timeline.measured} | {"wait"}
    handles = [
        Patch(facecolor=colour, label="all-reduce" if name == "allreduce" else name)
        for name, colour in _COLOURS.items()
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

"""Figures of a step's time: its spread, where it is lost, and the parts of a sampled step."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    add_legend,
    axis_limits,
    error_bars,
    keep_words,
    layouts_in,
    panel_grid,
    title_panels,
)
from analysis.figures.scaling import libraries_in, with_library
from analysis.figures.style import (
    FULL_IN,
    GREY,
    NARROW_IN,
    LayoutStyle,
    figure_width,
    layout_order,
    layout_style,
    new_figure,
    styled,
)
from analysis.render.number_text import significant
from analysis.statistics.intervals import FEWEST_STEPS
from analysis.summary.settings_in_words import is_missing, settings_label
from analysis.summary.time_breakdown import PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BOXES = 36
_NAMES_WIDTH, _NAME_LINES, _LETTER_IN = 0.45, 4, 0.08
"""Share of a figure's width for the rows' names, their number of lines, and a letter's length."""
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
_SAMPLED_PARTS = {
    "sampling": ("wait for sampling", "#8a8a8a", "////"),
    "gathering": ("wait for features", "#bdbdbd", "...."),
    "compute_ms": ("computing", "#0a5a8a", ""),
    "allreduce_ms": ("averaging gradients", "#d55e00", "xxxx"),
    "waiting": ("waiting for ranks, and rest", "#f4f4f4", ""),
    "rest": ("rest", "#d0d0d0", "----"),
}
"""Columns of the parts of a step: legend, colour, hatch; from the bottom of a bar to its top. One
that a row does not have is nan."""
_ABOVE_PT, _LINE_PT = 4.0, 8.0
"""Between an axis's end and a library's name above it, and the height of a line of such a name."""


def step_times(group: ModelOnData) -> Figure | str:
    """Boxes of the step times that count, with every outlier; a row a layout and micro-batches.

    A box is the spread of steps of equal samples; fewer than five are points. Layouts differ by far
    more than the steps of one layout, so the boxes show differences from the median of all the
    row's steps, which is printed next to it.
    """
    settled = group.steps[(group.steps["kept"] & ~group.steps["uneven"]).astype(bool)]
    if settled.empty:
        return "no step after warm-up"
    phases = [phase for phase in ("train", "test") if (settled["phase"] == phase).any()]
    keys = ["layout", "microbatches", *group.variants]
    rows = _box_rows(settled[keys].drop_duplicates(), group)
    with styled():
        letters = int(_NAMES_WIDTH * figure_width(FULL_IN) / _LETTER_IN)
        wrap = textwrap.TextWrapper(letters, max_lines=_NAME_LINES, placeholder=" …")
        names = [wrap.fill(name) for name, _ in rows[:MAX_BOXES]]
        lines = max(1 + name.count("\n") for name in names)
        # At a column's width, or with long names, one phase is below the other.
        down = len(phases) if figure_width(FULL_IN) < NARROW_IN or lines > 1 else 1
        shape = down, len(phases) // down
        figure = new_figure(FULL_IN, down * (0.9 + (0.07 + 0.13 * lines) * len(names)))
        axes = list(figure.subplots(*shape, sharey=True, squeeze=False).flat)
        for one, phase in zip(axes, phases, strict=True):
            _draw_boxes(one, settled[settled["phase"] == phase], keys, rows[:MAX_BOXES])
            one.set_title(f"{group.title}: {phase}", loc="left")
            break_line = "\n" if lines > 1 else " "
            one.set_xlabel(f"difference from the{break_line}median of all steps (%)")
        words = ["layout", "chunks" if group.graphs else "micro-batches"]
        words += [key.replace("chunks", "mode").replace("_", " ") for key in group.variants]
        for one in axes[:: shape[1]]:
            wrap.width = int(figure.get_figheight() / down / _LETTER_IN)
            one.set_ylabel(wrap.fill(", ".join(words)))
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.4, -0.6)
        if len(rows) > MAX_BOXES:
            figure.suptitle(f"the first {MAX_BOXES} of {len(rows)}", fontsize=7)
    return figure


def _box_rows(settings: pd.DataFrame, group: ModelOnData) -> list[tuple[str, tuple[object, ...]]]:
    """Name and settings of each row, smallest layouts first."""
    rows = []
    for layout in layouts_in(settings):
        mine = settings[settings["layout"] == layout]
        for row in mine.sort_values(["microbatches", *group.variants]).to_dict("records"):
            extra = settings_label({key: row[key] for key in group.variants})
            name = f"{layout}, {row['microbatches']}" + (f", {extra}" if extra else "")
            rows.append((name, _settings_key(row.values())))
    return rows


def _settings_key(values: Iterable[object]) -> tuple[object, ...]:
    """Values that can be looked up; nan cannot, as it does not equal itself."""
    return tuple(None if is_missing(value) else value for value in values)


def _draw_boxes(
    axes: Axes,
    steps: pd.DataFrame,
    keys: list[str],
    rows: list[tuple[str, tuple[object, ...]]],
) -> None:
    """Quartiles, whiskers, outliers and medians of each row, the median printed next to it."""
    from matplotlib.cbook import boxplot_stats

    seconds = {
        _settings_key(settings): part.to_numpy()
        for settings, part in steps.groupby(keys, observed=True, dropna=False)["step_s"]
    }
    places, styles, boxes = [], [], []
    axes.text(1.01, 1.0, "median (s)", transform=axes.transAxes, va="bottom", fontsize=6.5)
    for place, (name, settings) in enumerate(rows):
        if settings not in seconds:
            continue
        mine, style = seconds[settings], layout_style(str(settings[0]))
        median = float(np.median(mine))
        text, across = f"{significant(median, 4)}, n {mine.size}", axes.get_yaxis_transform()
        axes.text(1.01, place, text, transform=across, va="center", fontsize=6.5)
        keep_words(axes, [(0.0, place, f"{name}: {_spread(mine)}")])
        if mine.size < FEWEST_STEPS:
            _draw_points(axes, place, 100 * (mine / median - 1), style)
            continue
        (box,) = boxplot_stats(100 * (mine / median - 1))
        places.append(place)
        styles.append(style)
        boxes.append(box)
        axes.barh(
            place, box["q3"] - box["q1"], left=box["q1"], height=0.6, facecolor=style.colour,
            hatch=style.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        _draw_points(axes, place, box["fliers"], style)
    at, colours = np.array(places), [style.colour for style in styles]
    for end, quartile in (("whislo", "q1"), ("whishi", "q3")):
        ends = [box[end] for box in boxes]
        axes.hlines(at, ends, [box[quartile] for box in boxes], colors=colours)
        axes.vlines(ends, at - 0.15, at + 0.15, colors=colours)
    axes.vlines([box["med"] for box in boxes], at - 0.3, at + 0.3, colors="white", lw=1.6)
    _compress_far_outliers(axes, list(seconds.values()))
    axes.grid(visible=False, axis="y")


def _spread(seconds: Any) -> str:
    low, quarter, median, most, high = np.quantile(seconds, [0, 0.25, 0.5, 0.75, 1])
    return (
        f"median {median:.4g} s of {seconds.size} steps, quartiles {quarter:.4g} and {most:.4g}, "
        f"{low:.4g} to {high:.4g}"
    )


def _draw_points(axes: Axes, place: int, beyond: Any, style: LayoutStyle) -> None:
    if len(beyond):
        # PDF viewers are slow with thousands of vector marks.
        axes.plot(
            beyond, np.full(len(beyond), place), ls="none", marker=style.marker, ms=2.5,
            mfc="none", mec=style.colour, mew=0.5, rasterized=len(beyond) > 300,
        )  # fmt: skip


def _compress_far_outliers(axes: Axes, rows: list[Any]) -> None:
    """Use a logarithmic scale beyond the boxes if far outliers would make the boxes too small."""
    if not rows:
        return
    apart = [np.abs(100 * (seconds / np.median(seconds) - 1)) for seconds in rows]
    usual = max(float(np.quantile(row, 0.75)) for row in apart)
    furthest = max(float(row.max()) for row in apart)
    if usual > 0 and furthest > 12 * usual:
        axes.set_xscale("symlog", linthresh=2 * usual, linscale=1.5)
        ticks = [0.0, 2 * usual, furthest]
        axes.set_xticks([-ticks[1], *ticks], [f"{t:.2g}" for t in (-ticks[1], *ticks)])
        axes.minorticks_off()


def waterfall(group: ModelOnData) -> Figure | str:
    """A panel a layout and number of micro-batches, with a bar a part; at most twelve."""
    rows = group.training
    rows = rows[rows["stages"] * rows["replicas"] > 1].dropna(subset=[f"{PREFIX}linear_s"])
    if rows.empty:
        return "no sequential run to take steps of several ranks apart with"
    order = sorted(
        rows.to_dict("records"),
        key=lambda row: (layout_order(str(row["layout"])), int(row["microbatches"])),
    )
    with styled():
        figure, axes = panel_grid(len(order), sharex=True)
        title_panels(figure, axes, [_waterfall_title(group, row) for row in order], group.title)
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
    for place, (part, words) in enumerate(WATERFALL.items()):
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
        _number(axes, max(at, at + length), place, f"{length:.3g}")
        at += length
        axes.plot([at, at], [place - 0.36, place + 1.36], color=GREY, lw=0.5, zorder=3)
        keep_words(axes, [(at, float(place), f"{words}: {length:.3g} ms")])
    last, mean = len(WATERFALL), 1e3 * row["mean_s"]
    axes.barh(last, mean, height=0.72, color="#8a8a8a", zorder=2)
    measured = pd.DataFrame(
        [{name: 1e3 * row[name] for name in ("mean_s", "mean_low", "mean_high")}]
    )
    limits = (0.0, 0.98 * end_ms)
    error_bars(axes, [last], measured, "mean_s", ("mean_low", "mean_high"), limits, sideways=True)
    _number(axes, 0.0, last, f"{mean:.4g}", colour="white")
    keep_words(axes, [(mean, float(last), f"measured: {mean:.4g} ms")])
    axes.set_yticks(range(last + 1), [*WATERFALL.values(), "measured"])
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlabel("step (ms)")
    axes.grid(visible=False, axis="y")


def _number(axes: Axes, at: float, place: int, text: str, colour: str = "#202020") -> None:
    axes.annotate(
        text, (at, place), (2.5, 0.0), textcoords="offset points", va="center_baseline", fontsize=6,
        color=colour, zorder=5,
    )  # fmt: skip


def sampled_step_parts(group: ModelOnData) -> Figure | str:
    """Milliseconds of a sampled step and of its parts, a bar a library and layout."""
    rows = _with_sampled_parts(with_library(group.training.dropna(subset=["mean_s"])))
    if rows.empty:
        return "no training step after warm-up"
    parts = list(group.panels(rows, but=("implementation", "sampler", "semantics")))
    limits = axis_limits(rows["mean_ms"], rows["low_ms"], rows["high_ms"])
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            _draw_bars(one, part, limits)
        axes[0].set_ylabel("step (ms)")
        axes[0].set_ylim(*limits)
        _raise_titles(figure, axes)
        add_legend(figure, axes)
    return figure


def _with_sampled_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the parts of a step in milliseconds, which add up to it.

    What is left holds waiting for ranks and the rest, such as what lies between spans, which
    records do not separate; of one rank it is the rest alone. What a step waits for its mini-batch
    is divided as making the mini-batch was. With a library's loader, which does not time its
    sampling, the ranks copy features themselves, and the rest is waiting for the loader.
    """
    ms, waited = 1e3, rows["data_s"]
    known = rows["gather_s"] / (rows["sample_s"] + rows["gather_s"])
    copied = (waited * known).fillna(rows["gather_s"].clip(upper=waited)).fillna(0.0)
    left = ms * (rows["mean_s"] - waited - rows["compute_s"] - rows["allreduce_s"]).clip(lower=0.0)
    several = rows["stages"] * rows["replicas"] > 1
    return rows.assign(
        mean_ms=ms * rows["mean_s"],
        low_ms=ms * rows["mean_low"],
        high_ms=ms * rows["mean_high"],
        sampling=ms * (waited - copied),
        gathering=ms * copied,
        compute_ms=ms * rows["compute_s"],
        allreduce_ms=ms * rows["allreduce_s"],
        waiting=left.where(several),
        rest=left.where(~several),
    )


def _draw_bars(axes: Axes, rows: pd.DataFrame, limits: tuple[float, float]) -> None:
    """A group of bars a library, with its name above the axis, and in it one bar a layout."""
    places: list[float] = []
    names: list[str] = []
    ordered: list[Any] = []
    for library in libraries_in(rows):
        mine = rows[rows["library"] == library]
        mine = mine.sort_values("layout", key=lambda column: column.map(layout_order))
        first = places[-1] + 1.6 if places else 0.0
        places += [first + number for number in range(len(mine))]
        names += [str(name) for name in mine["layout"]]
        ordered += mine.to_dict("records")
        axes.annotate(
            library.replace(", ", "\n"), (first + (len(mine) - 1) / 2, 1.0), (0.0, _ABOVE_PT),
            xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="center",
            va="bottom", fontsize=6.5,
        )  # fmt: skip
    table = pd.DataFrame(ordered)
    bottom = np.zeros(len(table))
    for column, (label, colour, hatch) in _SAMPLED_PARTS.items():
        if table[column].isna().all():
            continue
        heights = table[column].fillna(0.0).to_numpy()
        axes.bar(
            places, heights, 0.8, bottom, label=label, facecolor=colour, hatch=hatch,
            edgecolor="#404040", linewidth=0.4,
        )  # fmt: skip
        bottom = bottom + heights
    error_bars(axes, places, table, "mean_ms", ("low_ms", "high_ms"), limits)
    keep_words(axes, map(_sampled_words, places, ordered))
    axes.set_xticks(places, names, rotation=90)
    for tick, name in zip(axes.get_xticklabels(), names, strict=True):
        tick.set_color(layout_style(name).colour)
    axes.set_xlabel("layout")
    axes.grid(visible=False, axis="x")


def _sampled_words(place: float, row: dict[Any, Any]) -> tuple[float, float, str]:
    parts = ", ".join(
        f"{label} {row[name]:.3g}"
        for name, (label, _, _) in _SAMPLED_PARTS.items()
        if not math.isnan(row[name])
    )
    words = f"{row['library']}, {row['layout']}: {row['mean_ms']:.4g} ms ({parts})"
    return place, float(row["mean_ms"]), words


def _raise_titles(figure: Figure, axes: list[Axes]) -> None:
    """Set all panels' titles above the libraries' names, for which the figure grows."""
    lines = max(text.get_text().count("\n") + 1 for one in axes for text in one.texts)
    for one in axes:
        one.set_title(one.get_title(loc="left"), loc="left", pad=2 * _ABOVE_PT + lines * _LINE_PT)
    down = len({one.get_position().y0 for one in axes})
    figure.set_figheight(figure.get_figheight() + down * (_ABOVE_PT + lines * _LINE_PT) / 72)

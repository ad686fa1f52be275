"""Figures of speed: speedup, efficiency, bubble and the distribution of step times.

Each function takes a study and returns a figure, or the reason why the run has no data for it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.hover import tell
from analysis.figures.panels import (
    add_legend,
    layouts_in,
    panel_grid,
    plot_by_microbatches,
    reference_handle,
    title_panels,
)
from analysis.figures.studies import Study, figure_label, is_missing
from analysis.figures.style import (
    FULL_IN,
    NARROW_IN,
    LayoutLook,
    figure_width,
    layout_look,
    new_figure,
    styled,
)
from analysis.render.interval_text import significant
from analysis.statistics.intervals import FEWEST_STEPS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BOXES = 36
NAMES_WIDTH, NAME_LINES = 0.45, 4
"""Of a figure's width, what rows' names may take, and in how many lines each."""
_LETTER_IN = 0.08
"""Length of an axis label's letter at most."""
_SHORT = 32
"""Letters of a label that is not broken into lines."""
_MICROBATCHES = "micro-batches a mini-batch"
_CHUNKS = "chunks a replica"


def speedup(study: Study) -> Figure | str:
    """Speedup over the baseline with its interval; ticks are the bound of each layout.

    Panels in which nothing is compared, but the baseline with itself, are left out.
    """
    rows = study.summary[study.summary["phase"] == "train"].dropna(subset=["speedup"])
    if rows.empty:
        return "no valid baseline to compare with"
    compared = [part.index for _, part in study.panels(rows) if part["effect"].notna().any()]
    if not compared:
        return "only the baseline, and nothing beside it"
    rows = rows.loc[np.concatenate(compared)]
    bounds, top = ("speedup_low", "speedup_high"), _speedup_top(rows)
    with styled():
        figure, axes = _by_variant(
            study, rows, "speedup", interval=bounds, reference="bound", top=top
        )
        axes[0].set_ylabel(f"speedup over {study.baseline_name} (ratio)")
        axes[0].set_ylim(0, top)
        add_legend(figure, axes, [reference_handle("bound")])
    return figure


def _speedup_top(rows: pd.DataFrame) -> float:
    """Above every speedup and bound; intervals may go on beyond twice these."""
    drawn = rows[["speedup", "bound"]].to_numpy(dtype=float)
    marks = float(drawn[np.isfinite(drawn)].max(initial=0.5))
    return min(2 * marks, 1.05 * max(marks, float(rows["speedup_high"].astype(float).max())))


def efficiency(study: Study) -> Figure | str:
    """Ideal over measured step time; 1 is a step without any cost beside the schedule."""
    rows = study.summary[study.summary["phase"] == "train"].dropna(subset=["efficiency"])
    if rows.empty:
        return "no forward and backward seconds in the records"
    with styled():
        figure, axes = _by_variant(
            study, rows, "efficiency", interval=("efficiency_low", "efficiency_high")
        )
        for one in axes:
            one.axhline(1.0, color="#606060", lw=0.8)
        axes[0].set_ylim(*_efficiency_limits(rows))
        axes[0].set_ylabel("efficiency (ideal / step time)")
        add_legend(figure, axes)
    return figure


def _efficiency_limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Around every mark and interval, and 1."""
    drawn = rows[["efficiency", "efficiency_low", "efficiency_high"]].astype(float)
    low, high = float(drawn.min().min()) - 0.02, float(drawn.max().max()) + 0.02
    return max(0.0, min(0.8, 0.05 * float(np.floor(low / 0.05)))), max(1.02, high)


def bubble(study: Study) -> Figure | str:
    """Share of rank-time spent waiting; ticks are what equal stages would have to wait."""
    rows = study.summary[study.summary["phase"] == "train"].dropna(subset=["bubble"])
    if rows.empty:
        return "no waiting seconds in the records"
    ideal = 100 * rows["balanced_bubble"]
    bounds = {name: 100 * rows[f"bubble_{name}"] for name in ("low", "high")}
    rows = rows.assign(waited=100 * rows["bubble"], ideal=ideal, **bounds)
    with styled():
        figure, axes = _by_variant(
            study, rows, "waited", interval=("low", "high"), reference="ideal"
        )
        axes[0].set_ylabel("waiting (% of rank-time)")
        axes[0].set_ylim(bottom=0)
        add_legend(figure, axes, [reference_handle("equal stages")])
    return figure


def _by_variant(
    study: Study,
    rows: pd.DataFrame,
    column: str,
    *,
    interval: tuple[str, str] | None = None,
    reference: str | None = None,
    top: float = math.inf,
) -> tuple[Figure, list[Axes]]:
    parts = list(study.panels(rows))
    figure, axes = panel_grid(len(parts))
    title_panels(figure, axes, [title for title, _ in parts], study.title)
    for one, (_, part) in zip(axes, parts, strict=False):
        plot_by_microbatches(one, part, column, interval=interval, reference=reference, top=top)
        one.set_xlabel(_CHUNKS if study.graphs else _MICROBATCHES)
    return figure, axes


def step_times(study: Study) -> Figure | str:
    """Boxes of the step times that count, with every outlier; a row a layout and micro-batches.

    A box is the spread of steps of equal samples; of fewer than five each is a point.

    Layouts differ by far more than the steps of one layout, so the boxes show differences from
    the median of all the row's steps, which is printed beside it.
    """
    settled = study.steps[(study.steps["kept"] & ~study.steps["uneven"]).astype(bool)]
    if settled.empty:
        return "no step after warm-up"
    phases = [phase for phase in ("train", "test") if (settled["phase"] == phase).any()]
    keys = ["layout", "microbatches", *study.variants]
    rows = _box_rows(settled[keys].drop_duplicates(), study)
    with styled():
        letters = int(NAMES_WIDTH * figure_width(FULL_IN) / _LETTER_IN)
        wrap = textwrap.TextWrapper(letters, max_lines=NAME_LINES, placeholder=" …")
        names = [wrap.fill(name) for name, _ in rows[:MAX_BOXES]]
        lines = max(1 + name.count("\n") for name in names)
        # At a column's width, or beside long names, one phase is below the other.
        down = len(phases) if figure_width(FULL_IN) < NARROW_IN or lines > 1 else 1
        shape = down, len(phases) // down
        figure = new_figure(FULL_IN, down * (0.9 + (0.07 + 0.13 * lines) * len(names)))
        axes = list(figure.subplots(*shape, sharey=True, squeeze=False).flat)
        for one, phase in zip(axes, phases, strict=True):
            _draw_boxes(one, settled[settled["phase"] == phase], keys, rows[:MAX_BOXES])
            one.set_title(f"{study.title}: {phase}", loc="left")
            break_line = "\n" if lines > 1 else " "
            one.set_xlabel(f"difference from the{break_line}median of all steps (%)")
        words = ["layout", "chunks" if study.graphs else "micro-batches"]
        words += [key.replace("chunks", "mode").replace("_", " ") for key in study.variants]
        for one in axes[:: shape[1]]:
            wrap.width = int(figure.get_figheight() / down / _LETTER_IN)
            one.set_ylabel(wrap.fill(", ".join(words)))
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.4, -0.6)
        if len(rows) > MAX_BOXES:
            figure.suptitle(f"the first {MAX_BOXES} of {len(rows)}", fontsize=7)
    return figure


def _box_rows(settings: pd.DataFrame, study: Study) -> list[tuple[str, tuple[object, ...]]]:
    """Name and settings of each row, smallest layouts first."""
    rows = []
    for layout in layouts_in(settings):
        mine = settings[settings["layout"] == layout]
        for row in mine.sort_values(["microbatches", *study.variants]).to_dict("records"):
            extra = figure_label({key: row[key] for key in study.variants})
            name = f"{layout}, {row['microbatches']}" + (f", {extra}" if extra else "")
            rows.append((name, _settings_key(row.values())))
    return rows


def _settings_key(values: Iterable[object]) -> tuple[object, ...]:
    """Values that can be looked up, as nan cannot, which is unlike itself."""
    return tuple(None if is_missing(value) else value for value in values)


def _draw_boxes(
    axes: Axes,
    steps: pd.DataFrame,
    keys: list[str],
    rows: list[tuple[str, tuple[object, ...]]],
) -> None:
    """Quartiles, whiskers, outliers and medians of each row, the median printed beside it.

    Fewer than `FEWEST_STEPS` are points.
    """
    from matplotlib.cbook import boxplot_stats

    seconds = {
        _settings_key(settings): part.to_numpy()
        for settings, part in steps.groupby(keys, observed=True, dropna=False)["step_s"]
    }
    drawn: list[tuple[int, tuple[object, ...]]] = []
    boxes = []
    axes.text(1.01, 1.0, "median (s)", transform=axes.transAxes, va="bottom", fontsize=6.5)
    for place, (name, settings) in enumerate(rows):
        if settings not in seconds:
            continue
        mine = seconds[settings]
        median = float(np.median(mine))
        style = layout_look(str(settings[0]))
        text = f"{significant(median, 4)}, n {mine.size}"
        across = axes.get_yaxis_transform()
        axes.text(1.01, place, text, transform=across, va="center", fontsize=6.5)
        tell(axes, [(0.0, place, f"{name}: {_spread(mine)}")])
        if mine.size < FEWEST_STEPS:
            _draw_points(axes, place, 100 * (mine / median - 1), style)
            continue
        (box,) = boxplot_stats(100 * (mine / median - 1))
        drawn.append((place, settings))
        boxes.append(box)
        axes.barh(
            place,
            box["q3"] - box["q1"],
            left=box["q1"],
            height=0.6,
            facecolor=style.colour,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0,
        )
        _draw_points(axes, place, box["fliers"], style)
    places = np.array([place for place, _ in drawn])
    colours = [layout_look(str(settings[0])).colour for _, settings in drawn]
    for end, quartile in (("whislo", "q1"), ("whishi", "q3")):
        ends = [box[end] for box in boxes]
        axes.hlines(places, ends, [box[quartile] for box in boxes], colors=colours)
        axes.vlines(ends, places - 0.15, places + 0.15, colors=colours)
    axes.vlines([box["med"] for box in boxes], places - 0.3, places + 0.3, colors="white", lw=1.6)
    _compress_far_outliers(axes, list(seconds.values()))
    axes.grid(visible=False, axis="y")


def _spread(seconds: Any) -> str:
    """The median and what lies around it, in words; seconds."""
    low, quarter, median, most, high = np.quantile(seconds, [0, 0.25, 0.5, 0.75, 1])
    return (
        f"median {median:.4g} s of {seconds.size} steps, quartiles {quarter:.4g} and {most:.4g}, "
        f"{low:.4g} to {high:.4g}"
    )


def _draw_points(axes: Axes, place: int, beyond: Any, style: LayoutLook) -> None:
    if not len(beyond):
        return
    axes.plot(
        beyond,
        np.full(len(beyond), place),
        ls="none",
        marker=style.marker,
        ms=2.5,
        mfc="none",
        mec=style.colour,
        mew=0.5,
        # PDF viewers are slow with thousands of vector marks.
        rasterized=len(beyond) > 300,
    )


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

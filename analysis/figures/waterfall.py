"""A figure of where a step loses time: from the linear ideal, by parts, to what was measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from analysis.figures.hover import tell
from analysis.figures.panels import ARROW, GOES_ON_RIGHT, IN_FRONT, panel_grid, title_panels
from analysis.figures.studies import Study, figure_label
from analysis.figures.style import layout_look, layout_order, styled
from analysis.summary.time_breakdown import PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = {
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
_MEASURED = "measured"
_ROOM = 1.15
"""How far the axis reaches beyond the longest step; an interval may go on beyond it."""


def waterfall(study: Study) -> Figure | str:
    """A panel a layout and number of micro-batches, with a bar a part; at most twelve."""
    rows = study.summary[study.summary["phase"] == "train"]
    rows = rows[rows["stages"] * rows["replicas"] > 1].dropna(subset=[f"{PREFIX}linear_s"])
    if rows.empty:
        return "no sequential run to take steps of several ranks apart against"
    order = sorted(
        rows.to_dict("records"),
        key=lambda row: (layout_order(str(row["layout"])), int(row["microbatches"])),
    )
    with styled():
        figure, axes = panel_grid(len(order), sharex=True)
        title_panels(figure, axes, [_title(study, row) for row in order], study.title)
        end_ms = _ROOM * 1e3 * max(row["mean_s"] for row in order)
        for one, row in zip(axes, order, strict=False):
            _draw(one, row, end_ms)
        axes[0].set_xlim(0.0, end_ms)
    return figure


def _title(study: Study, row: dict[Any, Any]) -> str:
    variant = figure_label({key: row[key] for key in study.variants if key in row})
    share = "" if math.isnan(row["of_bound"]) else f": {row['of_bound']:.2f} of the bound"
    count = int(row["microbatches"])
    name = f"{row['layout']}, {count} micro-batch{'' if count == 1 else 'es'}"
    return f"{name}{', ' + variant if variant else ''}{share}"


def _draw(axes: Axes, row: dict[Any, Any], end_ms: float) -> None:
    """Where the axis ends at `end_ms`."""
    look = layout_look(str(row["layout"]))
    at, told = 0.0, []
    names = [*PARTS.values(), _MEASURED]
    for place, part in enumerate(PARTS):
        seconds = row[f"{PREFIX}{part}_s"]
        if math.isnan(seconds):
            axes.text(1e3 * at, place, " with contention", fontsize=6, va="center", color="#606060")
            continue
        length = 1e3 * seconds
        whole = part == "linear"
        axes.barh(
            place,
            length,
            left=1e3 * at,
            height=0.72,
            color="#bdbdbd" if whole else look.colour,
            alpha=1.0 if length >= 0 else 0.45,
            hatch="" if whole or length < 0 else look.hatch,
            zorder=2,
        )
        at += seconds
        axes.plot([1e3 * at] * 2, [place - 0.36, place + 1.36], color="#606060", lw=0.5, zorder=3)
        told.append((1e3 * at, float(place), f"{PARTS[part]}: {length:.3g} ms"))
    low, high = (1e3 * row[f"mean_{side}"] for side in ("low", "high"))
    last = len(PARTS)
    axes.barh(last, 1e3 * row["mean_s"], height=0.72, color="#8a8a8a", zorder=2)
    if low < high:
        mean = 1e3 * row["mean_s"]
        axes.errorbar(
            mean, last, xerr=[[mean - low], [min(high, end_ms) - mean]], ecolor="#000000",
            elinewidth=0.8, capsize=2.4, ls="none", zorder=IN_FRONT,
        )  # fmt: skip
        if high > end_ms:
            axes.plot(end_ms, last, marker=GOES_ON_RIGHT, **ARROW)
    told.append((1e3 * row["mean_s"], float(last), f"{_MEASURED}: {1e3 * row['mean_s']:.4g} ms"))
    tell(axes, told)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("step (ms)")
    axes.grid(visible=False, axis="y")

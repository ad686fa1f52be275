"""Remakes single figures of a run, in one format and at the width of a paper's column."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures import gantt
from analysis.figures.catalog import FIGURE_KINDS, PublishedPoints, timeline_cells
from analysis.figures.origin import origin_of
from analysis.figures.step_timeline import find_cell, measured_timeline
from analysis.figures.studies import find_studies
from analysis.figures.style import FORMATS, Format, at_width, save_figure
from analysis.summary.baseline_and_speedup import Baseline
from gnnhpc.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.load.run_data import RunData as Run

_UNITS_IN = {"mm": 1 / 25.4, "cm": 1 / 2.54, "in": 1.0}
NARROWEST_MM, WIDEST_MM = 40, 400
_TIMELINE = "timeline"
Draw = Callable[[], "Figure | str"]


def parse_width(text: str) -> float:
    """Inches of `84mm`, `8.4cm` or `3.3in`; raises InputError for another form or size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(mm|cm|in)", text.strip())
    inches = float(found[1]) * _UNITS_IN[found[2]] if found else 0.0
    if not NARROWEST_MM <= inches * 25.4 <= WIDEST_MM:
        allowed = f"{NARROWEST_MM}mm to {WIDEST_MM}mm, such as 84mm, 8.4cm or 3.3in"
        raise InputError("--width", None, repr(text), allowed)
    return inches


def parse_format(text: str | None) -> tuple[Format, ...]:
    """Both formats for None; raises InputError for one that is not made."""
    chosen = tuple(one for one in FORMATS if text in (None, one))
    if not chosen:
        raise InputError("--format", None, repr(text), " or ".join(FORMATS))
    return chosen


def remake(
    run: Run,
    summary: pd.DataFrame,
    only: str,
    folder: Path,
    *,
    formats: Sequence[Format] = FORMATS,
    width: str | None = None,
    published: PublishedPoints | None = None,
) -> list[Path]:
    """Draw the figures of this name or kind into `folder`; returns their files.

    A width is part of the file's name. Raises InputError for a name that no figure of this run
    has, with the names that there are, and for one that the run has no data for.
    """
    inches = None if width is None else parse_width(width)
    suffix = "" if width is None else f"-{width.strip()}"
    known = _figures(run, summary, published or PublishedPoints(), only)
    # Of a timeline the beginning of its cell's id is enough.
    whole = "" if only.startswith(f"{_TIMELINE}-") else "-"
    chosen = [name for name in known if only == name or name.startswith(only + whole)]
    if not chosen:
        raise InputError("--only", None, repr(only), ", ".join(known) or "a run with valid cells")
    paths: list[Path] = []
    reasons = []
    with at_width(inches):
        for name in chosen:
            draw, cells, baseline = known[name]
            origin = origin_of(run, cells, name, baseline, width)
            figure = draw()
            if isinstance(figure, str):
                reasons.append(f"{name}: {figure}")
            else:
                paths += save_figure(figure, folder, name + suffix, origin, formats)
    if not paths:
        raise InputError("--only", None, "; ".join(reasons), "a figure that the run has data for")
    return paths


def _figures(
    run: Run, summary: pd.DataFrame, points: PublishedPoints, only: str
) -> dict[str, tuple[Draw, list[str], Baseline | None]]:
    """All figures that may be asked for: how each is drawn, of which cells, over which baseline."""
    found: dict[str, tuple[Draw, list[str], Baseline | None]] = {}
    for kind in FIGURE_KINDS:
        for study in find_studies(run, summary):
            if kind.drawn_of(study):
                draw = partial(kind.draw, study, kind.published(points, study))
                cells = list(study.cells["cell"])
                found[f"{kind.name}-{study.slug}"] = draw, cells, study.baseline
    shown, _ = timeline_cells(run)
    if only.startswith(f"{_TIMELINE}-"):
        # One of those that the report has no room for may be asked for by its cell.
        shown = [find_cell(run, only.removeprefix(f"{_TIMELINE}-"))]
    for cell in shown:
        found[f"{_TIMELINE}-{cell}"] = partial(_timeline, run, cell), [cell], None
    return found


def _timeline(run: Run, cell: str) -> Figure | str:
    return gantt.draw_timeline(measured_timeline(run, cell))

"""Draws the figures of a run: all of a report, or single ones at the width of a paper's column."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures.catalog import FIGURES, FigureKind
from analysis.figures.model_on_data import ModelOnData, find_models_on_data
from analysis.figures.style import COLUMN_IN, at_width, save_figure
from analysis.figures.timeline import cell_named, draw_timeline
from analysis.load.comparable import SEPARATE
from analysis.render.document import Picture
from analysis.studies.study_rows import published_points
from analysis.summary.baseline_and_speedup import Baseline
from analysis.summary.summary_table import Summary
from gnnhpc.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.load.run_data import RunData

TIMELINE = "timeline"
MAX_GROUPS, MAX_TIMELINES, MAX_PROCESSES = 8, 12, 4
"""Pairs of model and data, timelines, and processes, as a login node has other users."""
NARROWEST_MM, WIDEST_MM = 40, 400
_UNITS_IN = {"mm": 1 / 25.4, "cm": 1 / 2.54, "in": 1.0}


@dataclass(frozen=True)
class FigureTask:
    """A figure that may be drawn: of which cells, and how."""

    name: str
    """Stem of its files' names."""
    section: str
    title: str
    """Of what it is, and what it shows."""
    of: str
    cells: tuple[str, ...]
    draw: Callable[[], tuple[Figure, str] | str]
    """Returns the figure and its caption, or why there is none."""


@dataclass(frozen=True)
class Figures:
    """The figures of a report, in the order of the registry, and those that were left out."""

    drawn: tuple[tuple[str, Picture], ...] = ()
    """Each with its section."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The title of each, and the reason."""

    def of_section(self, section: str) -> tuple[Picture, ...]:
        """The pictures of a section."""
        return tuple(picture for name, picture in self.drawn if name == section)


def make_figures(summary: Summary, folder: Path) -> Figures:
    """Draw every figure that the run has data for into `folder`, as PNG and PDF.

    A figure whose drawing fails is left out, with the error as its reason.
    """
    groups = find_models_on_data(summary)
    cells, not_shown = timeline_cells(summary.run)
    tasks = [*_group_tasks(groups[:MAX_GROUPS])]
    tasks += [_timeline_task(summary.run, cell) for cell in cells]
    made = _in_parallel([partial(draw, summary, task, folder) for task in tasks])
    results = list(zip(tasks, made, strict=True))
    drawn = tuple((task.section, one) for task, one in results if isinstance(one, Picture))
    failed = tuple((task.title, one) for task, one in results if isinstance(one, str))
    words = f"only the first {MAX_GROUPS} pairs of model and data are drawn"
    others = [(group.title, words) for group in groups[MAX_GROUPS:]]
    return Figures(drawn, (*failed, *others, *not_shown))


def _group_tasks(groups: Sequence[ModelOnData]) -> Iterator[FigureTask]:
    for kind in FIGURES:
        for group in filter(kind.applies, groups):
            yield FigureTask(
                f"{kind.name}-{group.slug}",
                kind.section,
                f"{group.title}: {kind.words}",
                group.title,
                tuple(map(str, group.cells["cell"])),
                partial(_draw_kind, kind, group),
            )


def _draw_kind(kind: FigureKind, group: ModelOnData) -> tuple[Figure, str] | str:
    found = published_points(kind.name, group.model, group.data)
    figure = kind.draw(group, found[0]) if found else kind.draw(group)
    caption = f"{kind.caption} {found[1]}" if found else kind.caption
    return figure if isinstance(figure, str) else (figure, caption)


def _timeline_task(run: RunData, cell: str) -> FigureTask:
    name, title = f"{TIMELINE}-{cell}", f"{cell}: {TIMELINE}"
    return FigureTask(name, TIMELINE, title, cell, (cell,), partial(draw_timeline, run, cell))


def draw(
    summary: Summary,
    task: FigureTask,
    folder: Path,
    width: str | None = None,
) -> Picture | str:
    """Draw one figure, or say why it cannot be; an OSError is raised, as the next one meets it too.

    `width` is what was asked for, which is part of the file's name.
    """
    try:
        made = task.draw()
        if isinstance(made, str):
            return made
        figure, caption = made
        name = task.name if width is None else f"{task.name}-{width.strip()}"
        files = save_figure(figure, folder, name, origin_of(summary, task, width))
    except OSError:
        raise
    except Exception as error:
        return f"drawing it failed: {type(error).__name__}: {error}"
    wide = figure.get_figwidth() > COLUMN_IN
    return Picture(f"{task.of}. {caption}", task.title, files[0], files[-1], wide)


def origin_of(summary: Summary, task: FigureTask, width: str | None = None) -> Mapping[str, str]:
    """The source of a figure, as metadata of its files: run, code, cells, command."""
    run = summary.run
    digests = {run.stored[name].environment.get("code", "unknown") for name in task.cells}
    commit = (run.provenance or {}).get("commit") or "unknown"
    command = f"gnnhpc report {' '.join(run.runs)} --only {task.name}"
    if summary.baseline != Baseline():
        command += f" --baseline {summary.baseline.option}"
    command += " --separate" * (SEPARATE in run.settings) + (f" --width {width}" if width else "")
    # A figure of several runs belongs into none of their folders.
    command += " --out DIR" * (len(run.runs) > 1)
    return {
        "Run": run.name,
        "Code": f"commit {commit}, digest {', '.join(sorted(digests))}",
        "Comment": f"remade by: {command}",
        "Cells": " ".join(task.cells),
    }


def timeline_cells(run: RunData) -> tuple[list[str], list[tuple[str, str]]]:
    """The cells whose timelines are drawn, one of each setting; and those left out.

    Of each layout and schedule those with the most micro-batches come first, pipelines before
    single stages.
    """
    with_spans = run.cells["cell"].isin(run.spans["cell"].unique())
    cells = run.cells[with_spans & run.cells["counts"].astype(bool)]
    if cells.empty:
        return [], [("timeline", "no valid cell wrote spans; set `spans: true` in the sweep")]
    keys = ["model", "data", "layout", "schedule", "virtual_stages"]
    chosen, left_out = cells.drop_duplicates([*keys, "microbatches"]), []
    if len(chosen) > MAX_TIMELINES:
        chosen = chosen.sort_values("microbatches", ascending=False, kind="stable")
        place = chosen.groupby(keys, observed=True).cumcount()
        chosen = chosen.assign(place=place, alone=chosen["stages"] == 1)
        chosen = chosen.sort_values(["place", "alone"], kind="stable")
        words = (
            f"at most {MAX_TIMELINES} are drawn; `gnnhpc report RUN --only timeline-CELL` draws any"
        )
        left_out = [(f"timelines of {len(chosen) - MAX_TIMELINES} more configurations", words)]
    return [str(cell) for cell in chosen["cell"].iloc[:MAX_TIMELINES]], left_out


def parse_width(text: str) -> float:
    """Inches of `84mm`, `8.4cm` or `3.3in`; raises InputError for another form or size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(mm|cm|in)", text.strip())
    inches = float(found[1]) * _UNITS_IN[found[2]] if found else 0.0
    if not NARROWEST_MM <= inches * 25.4 <= WIDEST_MM:
        allowed = f"{NARROWEST_MM}mm to {WIDEST_MM}mm, such as 84mm, 8.4cm or 3.3in"
        raise InputError("--width", None, repr(text), allowed)
    return inches


def remake_figures(
    summary: Summary,
    only: str,
    folder: Path,
    *,
    width: str | None = None,
) -> list[Path]:
    """Draw the figures of this name or kind into `folder`; returns their files.

    A width is part of the file's name. Raises InputError for a name that no figure of this run
    has, with the names that there are, and for one that the run has no data for.
    """
    tasks = [*_group_tasks(find_models_on_data(summary))]
    tasks += [_timeline_task(summary.run, cell) for cell in timeline_cells(summary.run)[0]]
    start = only if only.startswith(f"{TIMELINE}-") else f"{only}-"
    chosen = [task for task in tasks if task.name == only or task.name.startswith(start)]
    if not chosen and only.startswith(f"{TIMELINE}-"):
        # A report has no room for every timeline.
        cell = cell_named(summary.run, only.removeprefix(f"{TIMELINE}-"))
        chosen = [_timeline_task(summary.run, cell)]
    if not chosen:
        known = ", ".join(task.name for task in tasks)
        raise InputError("--only", None, repr(only), known or "a run with valid cells")
    with at_width(None if width is None else parse_width(width)):
        made = [draw(summary, task, folder, width) for task in chosen]
    pictures = [one for one in made if isinstance(one, Picture)]
    if not pictures:
        reasons = "; ".join(f"{task.title}: {why}" for task, why in zip(chosen, made, strict=True))
        raise InputError("--only", None, reasons, "a figure that the run has data for")
    return [path for one in pictures for path in (one.png, one.pdf)]


_tasks: list[Callable[[], Picture | str]] = []
"""The tasks in progress, which forked processes find here: figures and frames need no pickling."""


def _in_parallel(tasks: Sequence[Callable[[], Picture | str]]) -> list[Picture | str]:
    """The results of all tasks, in order; in this process with one core, or if a process dies."""
    # Some libraries of macOS crash after a fork.
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    workers = min(len(tasks), len(os.sched_getaffinity(0)), MAX_PROCESSES) if forks else 1
    if workers > 1:
        _tasks[:] = tasks
        try:
            fork = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(workers, mp_context=fork) as pool:
                return list(pool.map(_run_task, range(len(tasks))))
        except BrokenProcessPool:
            pass
        finally:
            _tasks.clear()
    return [task() for task in tasks]


def _run_task(number: int) -> Picture | str:
    return _tasks[number]()

"""The registry of all figures, and drawing those of a run: all, or single ones of a width.

To add a figure, write a function and add a row to FIGURES.
"""

from __future__ import annotations

import difflib
import inspect
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures import graph_figures, speedup_figures, step_time, training_curves
from analysis.figures.colours_and_style import COLUMN_IN, at_width, save_figure
from analysis.figures.model_on_data import ModelOnData, find_models_on_data
from analysis.figures.timeline import draw_timeline, timeline_caption
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


@dataclass(frozen=True)
class FigureKind:
    """A row of the registry."""

    draw: Callable[..., Figure | str]
    """Takes a model on its data, and published points where a study has some; returns the figure,
    or why there is none. Its docstring is the caption, and its name the figure's."""
    section: str
    """Section of the report: headline, speed, learning, frameworks, chunks or sampled."""
    applies: Callable[[ModelOnData], bool] = lambda _: True
    """Whether a model and data can have this figure at all."""

    @property
    def name(self) -> str:
        return self.draw.__name__.replace("_", "-")

    @property
    def caption(self) -> str:
        return " ".join((inspect.getdoc(self.draw) or "").split())


def _waits(group: ModelOnData) -> bool:
    """Whether stages wait for one another, or replicas of one mini-batch do."""
    return not group.sampled or bool((group.cells["stages"] > 1).any())


FIGURES = (
    FigureKind(speedup_figures.speedup, "headline"),
    FigureKind(speedup_figures.efficiency, "speed", _waits),
    FigureKind(speedup_figures.strong_scaling, "speed", _waits),
    FigureKind(speedup_figures.weak_scaling, "speed", lambda group: not group.graphs),
    FigureKind(step_time.waterfall, "speed"),
    FigureKind(speedup_figures.bubble, "speed", _waits),
    FigureKind(step_time.step_times, "speed"),
    FigureKind(speedup_figures.memory, "speed"),
    FigureKind(training_curves.loss, "learning"),
    FigureKind(training_curves.learning_over_time, "learning"),
    FigureKind(training_curves.copies, "learning", _waits),
    FigureKind(graph_figures.framework_time, "frameworks", lambda group: group.several_frameworks),
    FigureKind(graph_figures.chunk_time, "chunks", lambda group: group.graphs),
    FigureKind(graph_figures.chunk_accuracy, "chunks", lambda group: group.graphs),
    FigureKind(graph_figures.epoch_time, "sampled", lambda group: group.sampled),
)


@dataclass(frozen=True)
class FigureTask:
    """A figure that may be drawn: of which cells, and how."""

    name: str
    """Stem of its files' names, and what `--only` calls it."""
    section: str
    caption: str
    cells: tuple[str, ...]
    draw: Callable[[], Figure | str]
    """Returns the figure, or why there is none."""


@dataclass(frozen=True)
class Figures:
    """The figures of a report, in the order of the registry, and those that were left out."""

    drawn: tuple[tuple[str, Picture], ...] = ()
    """Each with its section."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The name of each, and the reason."""

    def of_section(self, section: str) -> tuple[Picture, ...]:
        """The pictures of a section."""
        return tuple(picture for name, picture in self.drawn if name == section)


def make_figures(summary: Summary, folder: Path) -> Figures:
    """Draw every figure that the run has data for into `folder`, as PNG and PDF.

    A figure whose drawing fails is left out, with the error as its reason.
    """
    groups = find_models_on_data(summary)
    cells, not_shown = timeline_cells(summary.run)
    tasks = [*_group_tasks(groups[:MAX_GROUPS]), *_timeline_tasks(summary.run, cells)]
    made = _in_parallel([partial(draw, summary, task, folder) for task in tasks])
    results = list(zip(tasks, made, strict=True))
    drawn = tuple((task.section, one) for task, one in results if isinstance(one, Picture))
    failed = tuple((task.name, one) for task, one in results if isinstance(one, str))
    words = f"only the first {MAX_GROUPS} pairs of model and data are drawn"
    others = [(group.title, words) for group in groups[MAX_GROUPS:]]
    return Figures(drawn, (*failed, *others, *not_shown))


def _group_tasks(groups: Sequence[ModelOnData]) -> Iterator[FigureTask]:
    for kind in FIGURES:
        for group in filter(kind.applies, groups):
            points, words = published_points(kind.name, group.model, group.data) or (None, "")
            draws = partial(kind.draw, group, *([] if points is None else [points]))
            caption = f"{group.title}. {kind.caption} {words}".rstrip()
            cells = tuple(map(str, group.cells["cell"]))
            name = f"{kind.name}-{group.model}-{group.data}"
            yield FigureTask(name, kind.section, caption, cells, draws)


def _timeline_tasks(run: RunData, cells: Iterable[str]) -> Iterator[FigureTask]:
    for cell in cells:
        caption = f"{cell}. {timeline_caption(run, cell)}"
        draws = partial(draw_timeline, run, cell)
        yield FigureTask(f"{TIMELINE}-{cell}", TIMELINE, caption, (cell,), draws)


def draw(
    summary: Summary, task: FigureTask, folder: Path, width: str | None = None
) -> Picture | str:
    """Draw one figure, or say why it cannot be; an OSError is raised, as the next one meets it too.

    `width` is what was asked for, which is part of the file's name.
    """
    try:
        figure = task.draw()
        if isinstance(figure, str):
            return figure
        name = f"{task.name}-{width}" if width else task.name
        png, pdf = save_figure(figure, folder, name, origin_of(summary, task, width))
    except OSError:
        raise
    except Exception as error:
        return f"drawing it failed: {type(error).__name__}: {error}"
    return Picture(task.caption, task.name, png, pdf, figure.get_figwidth() > COLUMN_IN)


def origin_of(summary: Summary, task: FigureTask, width: str | None = None) -> Mapping[str, str]:
    """The source of a figure, as metadata of its files: run, code, cells, command."""
    run = summary.run
    digests = {run.stored[name].environment.get("code", "unknown") for name in task.cells}
    commit = run.provenance.get("commit") or "unknown"
    command = f"gnnhpc report {' '.join(run.runs)} --only {task.name}"
    if summary.baseline != Baseline():
        command += f" --baseline {summary.baseline}"
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
    chosen = cells.drop_duplicates([*keys, "microbatches"])
    chosen = chosen.sort_values("microbatches", ascending=False, kind="stable")
    place = chosen.groupby(keys, observed=True).cumcount()
    chosen = chosen.assign(place=place, alone=chosen["stages"] == 1)
    names = list(map(str, chosen.sort_values(["place", "alone"], kind="stable")["cell"]))
    title = f"timelines of {len(names) - MAX_TIMELINES} more configurations"
    words = f"at most {MAX_TIMELINES} are drawn; `gnnhpc report RUN --only timeline-CELL` draws any"
    return names[:MAX_TIMELINES], [(title, words)] if len(names) > MAX_TIMELINES else []


def parse_width(text: str) -> float:
    """Inches of `84mm`; raises InputError for another form or size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)mm", text)
    if not found or not NARROWEST_MM <= float(found[1]) <= WIDEST_MM:
        allowed = f"{NARROWEST_MM}mm to {WIDEST_MM}mm, such as 84mm"
        raise InputError("--width", None, repr(text), allowed)
    return float(found[1]) / 25.4


def remake_figures(
    summary: Summary, only: str, folder: Path, *, width: str | None = None
) -> list[Path]:
    """Draw the figures of this name or kind into `folder`; returns their files.

    A width is part of the file's name. Raises InputError for a name that no figure of this run
    has, with the names that there are, and for one that the run has no data for.
    """
    run = summary.run
    # A report has no room for every timeline.
    every = only.startswith(f"{TIMELINE}-")
    cells = run.stored if every else timeline_cells(run)[0]
    tasks = [*_group_tasks(find_models_on_data(summary)), *_timeline_tasks(run, cells)]
    chosen = [task for task in tasks if f"{task.name}-".startswith(f"{only}-")]
    if not chosen:
        names = [task.name for task in tasks if task.section != TIMELINE]
        close = difflib.get_close_matches(only, [*(kind.name for kind in FIGURES), *names], n=1)
        found = repr(only) + (f" (is {close[0]} meant?)" if close else "")
        raise InputError("--only", None, found, f"{', '.join(names)}, {TIMELINE}-CELL")
    with at_width(parse_width(width) if width is not None else None):
        made = [draw(summary, task, folder, width) for task in chosen]
    pictures = [one for one in made if isinstance(one, Picture)]
    if not pictures:
        reasons = "; ".join(f"{task.name}: {why}" for task, why in zip(chosen, made, strict=True))
        raise InputError("--only", None, reasons, "a figure that the run has data for")
    return [path for one in pictures for path in (one.png, one.pdf)]


_tasks: list[Callable[[], Picture | str]] = []
"""The tasks in progress, which forked processes find here: figures and frames need no pickling."""


def _in_parallel(tasks: Sequence[Callable[[], Picture | str]]) -> list[Picture | str]:
    """The results of all tasks, in order; in this process with one core."""
    # Some libraries of macOS crash after a fork.
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    workers = min(len(tasks), len(os.sched_getaffinity(0)), MAX_PROCESSES) if forks else 1
    if workers <= 1:
        return [task() for task in tasks]
    _tasks[:] = tasks
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_run_task, range(len(tasks))))


def _run_task(number: int) -> Picture | str:
    return _tasks[number]()

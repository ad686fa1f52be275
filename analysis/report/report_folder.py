"""Writes the report folder of a run: summary.csv, steps, tables, figures and pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.figures.one_figure import parse_format, parse_width, remake
from analysis.load.concat_runs import load_runs
from analysis.load.run_data import RunData as Run
from analysis.render.output_folder import atomic_output_folder
from analysis.report.report_pages import published_points, write_report_pages
from analysis.report.report_tables import make_report_tables, write_report_tables
from analysis.summary.baseline_and_speedup import Baseline
from analysis.summary.summary_table import Summary, summarize
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.settings import check_is_utf8
from gnnhpc.core.versioned_json import write_atomically

_CELL_COLUMNS = ("model", "data", "layout", "stages", "replicas", "microbatches", "seed", "repeat")


def write_report_folder(
    roots: Sequence[Path], out: Path | None = None, baseline: str = "seq", *, apart: bool = False
) -> tuple[Run, pd.DataFrame, Path]:
    """Load the runs at `roots` and write their report; returns run, summary and its folder.

    With `apart`, cells that are not comparable with most of their study are rows of their own.
    `out` is RUN/report unless given, as it must be for several runs. It is written completely or
    not at all; files of the same names are replaced, others stay. Raises InputError if one of
    `roots` is no run folder, none has the `baseline`, `out` cannot be written, or a path is no
    UTF-8.
    """
    report = _folder(roots, out)
    run = load_runs(roots, separate=apart)
    summary = _summary(run, baseline)
    with atomic_output_folder(report) as folder:
        write_atomically(
            folder / "summary.csv", summary.table.to_csv(index=False, lineterminator="\n")
        )
        steps_frame(run).to_parquet(folder / "steps.parquet", index=False)
        tables = make_report_tables(summary)
        write_report_tables(tables, folder / "tables")
        write_report_pages(summary, folder, tables)
    return run, summary.table, report


def _folder(roots: Sequence[Path], out: Path | None) -> Path:
    """The report's own; a report of several runs belongs into none of them.

    Raises InputError for several runs without `out`, and for paths that are no UTF-8.
    """
    for root in roots:
        check_is_utf8(root, "RUN")
    if out is not None:
        check_is_utf8(out, "--out")
    if out is None and len(roots) > 1:
        raise InputError("--out", None, "none, and several runs", "a folder for their report")
    return RunPaths(roots[0]).report if out is None else out


def _summary(run: Run, baseline: str) -> Summary:
    """Raises InputError for a baseline that is none, or that the run does not have."""
    wanted = Baseline.parse(baseline)
    wanted.check_is_in(run.cells)
    return summarize(run, wanted)


def write_single_figures(
    roots: Sequence[Path],
    only: str,
    out: Path | None = None,
    baseline: str = "seq",
    *,
    apart: bool = False,
    width: str | None = None,
    format: str | None = None,
) -> tuple[Run, list[Path]]:
    """Remake the figures of one name or kind, of one width and format; returns what was loaded and
    their files.

    `out` is RUN/report/only unless given. Raises InputError as `remake` does, for a `baseline` that
    is not there, and where `out` cannot be written.
    """
    formats = parse_format(format)
    if width is not None:
        parse_width(width)
    folder = _folder(roots, out) / ("only" if out is None else "")
    run = load_runs(roots, separate=apart)
    summary = _summary(run, baseline)
    try:
        paths = remake(
            run,
            summary.table,
            only,
            folder,
            formats=formats,
            width=width,
            published=published_points(),
        )
    except OSError as error:
        found = f"{folder} ({error.strerror})"
        raise InputError("--out", None, found, "a folder you may write in") from None
    return run, paths


def steps_frame(run: Run) -> pd.DataFrame:
    """`run.steps` with the settings of each step's cell as columns."""
    row = run.steps["cell"].cat.codes.to_numpy()
    settings = {name: run.cells[name].to_numpy()[row] for name in _CELL_COLUMNS}
    return run.steps.assign(**settings, valid=run.cells["valid"].to_numpy()[row])

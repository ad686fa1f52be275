"""Writes the report folder of a run: summary.csv, steps, tables, figures and pages."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.figures.one_figure import parse_format, parse_width, remake
from analysis.loading.run import Run, load
from analysis.render.output_folder import atomic_output_folder
from analysis.report.report_pages import published_points, write_report_pages
from analysis.report.report_tables import make_report_tables, write_report_tables
from analysis.summary.summary_table import summarise
from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths, write_atomically

_CELL_COLUMNS = ("model", "data", "layout", "stages", "replicas", "microbatches", "seed", "repeat")


def write_report_folder(
    root: Path, out: Path | None = None, baseline: str = "seq", *, apart: bool = False
) -> tuple[Run, pd.DataFrame, Path]:
    """Load the run at `root` and write its report; returns run, summary and the report's folder.

    With `apart`, cells that are unlike the most of their study are rows of their own.
    `out` is RUN/report unless given. It is written completely or not at all; files of the same
    names are replaced, others stay. Raises InputError if `root` is no run folder or `out` cannot
    be written.
    """
    run = load(root, apart=apart)
    summary = summarise(run, baseline)
    report = RunPaths(root).report if out is None else out
    with atomic_output_folder(report) as folder:
        write_atomically(folder / "summary.csv", summary.to_csv(index=False, lineterminator="\n"))
        steps_frame(run).to_parquet(folder / "steps.parquet", index=False)
        tables = make_report_tables(run, summary)
        write_report_tables(tables, folder / "tables")
        write_report_pages(run, folder, summary, tables)
    return run, summary, report


def write_single_figures(
    root: Path,
    only: str,
    out: Path | None = None,
    baseline: str = "seq",
    *,
    apart: bool = False,
    width: str | None = None,
    format: str | None = None,
) -> list[Path]:
    """Remake the figures of one name or kind, of one width and format; returns their files.

    `out` is RUN/report/only unless given. Raises InputError as `remake` does, and where `out`
    cannot be written.
    """
    formats = parse_format(format)
    if width is not None:
        parse_width(width)
    run = load(root, apart=apart)
    summary = summarise(run, baseline)
    folder = RunPaths(root).report / "only" if out is None else out
    try:
        return remake(
            run,
            summary,
            only,
            folder,
            formats=formats,
            width=width,
            published=published_points(),
        )
    except OSError as error:
        found = f"{folder} ({error.strerror})"
        raise InputError("--out", None, found, "a folder you may write in") from None


def steps_frame(run: Run) -> pd.DataFrame:
    """`run.steps` with the settings of each step's cell as columns."""
    row = run.steps["cell"].cat.codes.to_numpy()
    settings = {name: run.cells[name].to_numpy()[row] for name in _CELL_COLUMNS}
    return run.steps.assign(**settings, valid=run.cells["valid"].to_numpy()[row])

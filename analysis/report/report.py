"""Writes the report folder of a run: summary.csv, steps, tables, figures and pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.figures.draw_figures import make_figures, remake_figures
from analysis.load.run_data import RunData, load_run
from analysis.render.document import Document
from analysis.render.formats import atomic_output_folder, write_page, write_table
from analysis.report.first_page import first_page_section
from analysis.report.sections import make_tables, report_sections
from analysis.summary.summary_table import Summary, summarize
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import write_atomically

_CELL_COLUMNS = ("model", "data", "layout", "stages", "replicas", "microbatches", "seed", "repeat")


def write_report(
    roots: Sequence[Path],
    out: Path | None = None,
    baseline: str = "seq",
    *,
    separate: bool = False,
) -> tuple[Summary, Path]:
    """Load the runs at `roots` and write their report; returns the summary and its folder.

    With `separate`, cells that are not comparable with most others of their model and data are rows
    of their own. `out` is RUN/report unless given, as it must be for several runs. It is written
    completely or not at all; files of the same names are replaced, others stay. Raises InputError
    if one of `roots` is no run folder, none has the `baseline`, `out` cannot be written, or a path
    is no UTF-8.
    """
    report = _folder(roots, out)
    summary = summarize(load_run(*roots, separate=separate), baseline)
    run, tables = summary.run, make_tables(summary)
    with atomic_output_folder(report) as folder:
        rows = summary.table.to_csv(index=False, lineterminator="\n")
        write_atomically(folder / "summary.csv", rows)
        _steps_frame(run).to_parquet(folder / "steps.parquet", index=False)
        for table in tables:
            write_table(table, folder / "tables")
        figures = make_figures(summary, folder / "figures")
        sections = (first_page_section(summary, figures), *report_sections(tables, figures))
        commit = run.provenance.get("commit")
        code = f"code {commit}" if commit else "no commit recorded"
        subtitle = f"{len(run.cells)} cells, {int(run.cells['valid'].sum())} valid; {code}"
        write_page(Document(f"Report of {run.name}", subtitle, sections, folder), folder)
    return summary, report


def write_single_figures(
    roots: Sequence[Path],
    only: str,
    out: Path | None = None,
    baseline: str = "seq",
    *,
    separate: bool = False,
    width: str | None = None,
) -> tuple[Summary, list[Path]]:
    """Remake the figures of one name or kind, of one width.

    Returns the summary, and the figures' files. `out` is RUN/report/only unless given. Raises
    InputError as `remake_figures` does, for a `baseline` that is not there, and where `out` cannot
    be written.
    """
    folder = _folder(roots, out) / ("only" if out is None else "")
    summary = summarize(load_run(*roots, separate=separate), baseline)
    try:
        paths = remake_figures(summary, only, folder, width=width)
    except OSError as error:
        found = f"{folder} ({error.strerror})"
        raise InputError("--out", None, found, "a folder you may write in") from None
    return summary, paths


def _folder(roots: Sequence[Path], out: Path | None) -> Path:
    """Raises InputError for several runs without `out`."""
    if out is None and len(roots) > 1:
        raise InputError("--out", None, "none, and several runs", "a folder for their report")
    return RunPaths(roots[0]).report if out is None else out


def _steps_frame(run: RunData) -> pd.DataFrame:
    """`run.steps` with the settings of each step's cell as columns."""
    row = run.steps["cell"].cat.codes.to_numpy()
    settings = {name: run.cells[name].to_numpy()[row] for name in _CELL_COLUMNS}
    return run.steps.assign(**settings, valid=run.cells["valid"].to_numpy()[row])

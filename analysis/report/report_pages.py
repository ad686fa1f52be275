"""The report of a run: figures, report.md, report.html and traces, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures.catalog import Figures, Published, make_figures
from analysis.papers.published_data import read
from analysis.render import html, markdown
from analysis.render.document import Document
from analysis.render.table_files import Table
from analysis.report import sections
from analysis.report.first_page import count, first_page
from analysis.report.report_tables import make_tables
from analysis.summary.summary_table import summarise
from analysis.timeline.chrome_trace import write_trace
from analysis.timeline.step_timeline import cells_with_spans
from gnnhpc.records.paths import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from analysis.loading.run import Run

MAX_TRACES = 20


def write_report(
    run: Run,
    out: Path,
    summary: pd.DataFrame | None = None,
    tables: Sequence[Table] | None = None,
) -> Path:
    """Write figures/, traces/, report.md and report.html into `out`; returns report.html.

    `summary` and `tables` save making them again. Raises InputError for a damaged result.
    """
    if summary is None:
        summary = summarise(run)
    if tables is None:
        tables = make_tables(run, summary)
    figures = make_figures(run, summary, out / "figures", published_points())
    for cell in cells_with_spans(run)[:MAX_TRACES]:
        write_trace(run, cell, out / "traces" / f"{cell}.json")
    document = make_document(run, summary, tables, figures, out)
    write_atomically(out / "report.md", markdown.render(document))
    page = out / "report.html"
    write_atomically(page, html.render(document))
    return page


def published_points() -> Published:
    """What the figures of loss and of chunks draw beside ours."""
    chunks = read("dearing_table3_pubmed")
    rebuilt = chunks[(chunks["rebuild"] == "yes") & (chunks["framework"] == "DGL")]
    return Published(read("raffi_loss_figure3"), rebuilt)


def make_document(
    run: Run, summary: pd.DataFrame, tables: Sequence[Table], figures: Figures, out: Path
) -> Document:
    """The report as data: verdict first, then numbers, pictures and how they were made."""
    counts = count(run.cells)
    commit = run.provenance.get("commit")
    code = f"code {str(commit)[:12]}" if commit else "code without a commit"
    return Document(
        title=f"Report of {run.root.resolve().name}",
        subtitle=f"{counts.cells} cells, {counts.valid} valid; {code}",
        sections=tuple(
            sections.present(
                first_page(run, summary),
                sections.summary_section(summary),
                sections.speed_section(summary, figures),
                sections.learning_section(summary, figures),
                sections.chunks_section(figures),
                sections.published_section(tables),
                sections.corrected_section(tables),
                sections.timeline_section(figures),
                sections.statistics_section(run, summary),
                sections.left_out_section(figures),
            )
        ),
        folder=out,
    )

"""Writes the pages of a report, report.md and report.html, with their figures and traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.figures.catalog import Figures, PublishedPoints, make_figures
from analysis.figures.chrome_trace import write_trace
from analysis.figures.step_timeline import cells_with_spans
from analysis.render.document import Document
from analysis.render.html import document_to_html
from analysis.render.markdown import document_to_markdown
from analysis.render.named_table import NamedTable
from analysis.report import sections
from analysis.report.first_page import count_cells, first_page_section
from analysis.studies.study import published_studies, read_published
from analysis.studies.study_rows import published_epochs
from analysis.summary.summary_table import Summary
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load.run_data import RunData as Run

MAX_TRACES = 20


def write_report_pages(summary: Summary, out: Path, tables: Sequence[NamedTable]) -> Path:
    """Write figures/, traces/, report.md and report.html into `out`; returns report.html.

    Raises InputError for a damaged result.
    """
    run = summary.run
    figures = make_figures(run, summary.table, out / "figures", published_points())
    for cell in cells_with_spans(run)[:MAX_TRACES]:
        write_trace(run, cell, out / "traces" / f"{cell}.json")
    document = report_document(run, summary.table, tables, figures, out)
    write_atomically(out / "report.md", document_to_markdown(document))
    page = out / "report.html"
    write_atomically(page, document_to_html(document))
    return page


def published_points() -> PublishedPoints:
    """The published points of the figures of loss, chunks, frameworks and sampled training."""
    chunks = read_published("dearing_table3_pubmed")
    rebuilt = chunks[(chunks["rebuild"] == "yes") & (chunks["framework"] == "DGL")]
    single = read_published("dearing_table2_single_device")
    sampled = published_epochs(published_studies()["boca"])
    return PublishedPoints(read_published("raffi_loss_figure3"), rebuilt, single, sampled)


def report_document(
    run: Run, summary: pd.DataFrame, tables: Sequence[NamedTable], figures: Figures, out: Path
) -> Document:
    """The report's document: verdict, numbers, figures, statistics."""
    counts = count_cells(run.cells)
    commit = (run.provenance or {}).get("commit")
    # Of several runs with other code each has its name before it.
    told = str(commit) if ": " in str(commit) else str(commit)[:12]
    code = f"code {told}" if commit else "code without a commit"
    return Document(
        title=f"Report of {run.name}",
        subtitle=f"{counts.cells} cells, {counts.valid} valid; {code}",
        sections=tuple(
            sections.without_none(
                first_page_section(run, summary, figures),
                sections.summary_section(summary),
                sections.speed_section(summary, figures),
                sections.learning_section(summary, figures),
                sections.frameworks_section(tables, figures),
                sections.chunks_section(figures),
                sections.sampled_section(tables, figures),
                sections.published_section(tables),
                sections.corrected_section(tables),
                sections.timeline_section(figures),
                sections.statistics_section(run, summary),
                sections.left_out_section(figures),
            )
        ),
        folder=out,
    )

"""The sections of a report after the first page; a section without anything to show is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.figures.draw_figures import Figures
from analysis.render.document import (
    Block,
    Bullets,
    Folded,
    Section,
    Table,
    Text,
    page_table,
    rows_table,
)
from analysis.report.texts import texts
from analysis.studies.study import published_studies

_SECTIONS = {
    "summary": ("Summary", ("step_times", "speedup", "efficiency")),
    "speed": ("Speedup and efficiency", ("lost_time",)),
    "learning": ("Loss and accuracy", ("learnt",)),
    "frameworks": ("Ours, PyG and DGL", ("frameworks",)),
    "chunks": ("Graphs in chunks", ("dearing_conclusions",)),
    "sampled": ("Sampled mini-batches", ("boca_conclusions", "sampled")),
}
"""Section, which is also that of its figures -> title and tables."""
_STUDY_COLUMNS = (
    *("table", "setting", "phase", "quantity", "published", "ours", "bound", "verdict", "run"),
)


def report_sections(tables: Sequence[Table], figures: Figures) -> list[Section]:
    """The sections in their order."""
    named = {table.name: table for table in tables}
    of_sections = {name for _, names in _SECTIONS.values() for name in names}
    made: list[tuple[str, str, list[Block]]] = [
        (
            section,
            title,
            [*_noted([named[n] for n in names if n in named]), *figures.of_section(section)],
        )
        for section, (title, names) in _SECTIONS.items()
    ]
    others = [t for t in tables if t.name not in {*of_sections, "noise", "corrected_study"}]
    folded = Folded("Each published table, with the rows of this run", (*_noted(others),))
    made += [
        ("tables", "Published tables", [folded] if others else []),
        ("corrected", "The corrected study", _corrected(named.get("corrected_study"))),
        ("timeline", "Timeline", [*figures.of_section("timeline")]),
        ("statistics", "Statistics", _statistics(named.get("noise"))),
        ("left-out", "Figures left out", _left_out(figures)),
    ]
    return [Section(name, title, tuple(blocks)) for name, title, blocks in made if blocks]


def _noted(tables: Sequence[Table]) -> list[Block]:
    """The tables with their notes; a note is under the first table with it."""
    blocks: list[Block] = []
    shown: set[str] = set()
    for one in tables:
        fresh = tuple(note for note in one.notes if note not in shown)
        blocks += [one, *([Bullets(fresh)] if fresh else [])]
        shown.update(fresh)
    return blocks


def _corrected(table: Table | None) -> list[Block]:
    """A table for each published study, with its known defects."""
    blocks: list[Block] = []
    for name, source in published_studies().items():
        rows = table.frame[table.frame["study"] == name] if table else pd.DataFrame()
        if len(rows):
            title = f"{name}: published, ours, bound, verdict"
            blocks += [
                Text(f"{source.citation}. {source.what}. {source.machine}."),
                page_table(rows, title, _STUDY_COLUMNS),
                Text("Known defects of these measurements:"),
                Bullets(tuple(source.defects.values())),
            ]
    return blocks


def _statistics(noise: Table | None) -> list[Block]:
    """How the numbers were computed; warm-up, outliers and noise of each configuration."""
    return [Bullets(tuple(texts()["statistics"])), *_noted([noise] if noise else [])]


def _left_out(figures: Figures) -> list[Block]:
    """The figures that were left out, and why."""
    title = "Figures that this run has no data for"
    columns = ("figure", "reason")
    return [rows_table(title, columns, figures.left_out)] if figures.left_out else []

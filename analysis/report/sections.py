"""The tables of a report, and its sections after the first page.

A table is a list of columns of the summary, or one of a published study; a section without anything
to show is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from analysis.figures.draw_figures import Figures
from analysis.render.document import Block, Bullets, Folded, Section, Table, Text
from analysis.render.formats import TEMPLATES
from analysis.studies.study import published_studies
from analysis.studies.study_tables import study_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_csv_columns import is_share
from analysis.summary.summary_table import Summary

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


@functools.cache
def texts() -> dict[str, Any]:
    """Advice by flag, bullets on statistics; and of each table the title, phase, columns, notes."""
    source = (TEMPLATES / "texts.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(source)
    return found


def make_tables(found: Summary) -> list[Table]:
    """All tables that have a row; those of a published study only if the run has its model on its
    data.
    """
    described = texts()["tables"]
    of_frameworks = described["frameworks"]
    measured = found.table[found.table["n"] > 0]
    tables = [
        _table(name, one, measured) for name, one in described.items() if one is not of_frameworks
    ]
    title, notes = of_frameworks["title"], of_frameworks["notes"]
    tables.append(Table("frameworks", title, frameworks_frame(found), tuple(notes), keys=5))
    return [table for table in tables if len(table.frame)] + study_tables(found)


def _table(name: str, described: Mapping[str, Any], rows: pd.DataFrame) -> Table:
    """The rows that have a value in the first of its columns."""
    keys = [*ROW_KEYS, "phase"]
    if "phase" in described:
        rows, keys = rows[rows["phase"] == described["phase"]], keys[:-1]
    learnt = (column for column in map(str, rows.columns) if _is_learnt(column))
    columns = described.get("columns") or [*learnt, "cells_used"]
    rows = rows[rows[columns[0]].notna()] if columns[0] in rows else rows[:0]
    frame = with_study(rows)[[*keys, *(each for each in columns if each in rows)]]
    notes = tuple(described.get("notes", ()))
    return Table(name, described["title"], frame.reset_index(drop=True), notes, keys=len(keys))


def _is_learnt(name: str) -> bool:
    """Whether a column of the summary is a loss or a share, or a bound of one."""
    stem = name.removesuffix("_low").removesuffix("_high")
    return stem.endswith("_loss") or is_share(stem)


def report_sections(tables: Sequence[Table], figures: Figures) -> list[Section]:
    """The sections in their order."""
    named = {table.name: table for table in tables}
    noise, corrected = named.pop("noise", None), named.pop("corrected_study", None)
    made: list[tuple[str, str, list[Block]]] = []
    for section, (title, names) in _SECTIONS.items():
        mine = [named.pop(name) for name in names if name in named]
        made.append((section, title, [*_noted(mine), *figures.of_section(section)]))
    others = Folded("Each published table, with the rows of this run", (*_noted(named.values()),))
    statistics = [Bullets(tuple(texts()["statistics"])), *_noted([noise] if noise else [])]
    left_out = pd.DataFrame(figures.left_out, columns=["figure", "reason"])
    absent = Table("", "Figures that this run has no data for", left_out)
    made += [
        ("tables", "Published tables", [others] if named else []),
        ("corrected", "The corrected study", _corrected(corrected) if corrected else []),
        ("timeline", "Timeline", [*figures.of_section("timeline")]),
        ("statistics", "Statistics", statistics),
        ("left-out", "Figures left out", [absent] if figures.left_out else []),
    ]
    return [Section(name, title, tuple(blocks)) for name, title, blocks in made if blocks]


def _noted(tables: Iterable[Table]) -> list[Block]:
    """The tables with their notes; a note is under the first table with it."""
    blocks: list[Block] = []
    shown: set[str] = set()
    for one in tables:
        fresh = tuple(note for note in one.notes if note not in shown)
        blocks += [one, *([Bullets(fresh)] if fresh else [])]
        shown.update(fresh)
    return blocks


def _corrected(table: Table) -> list[Block]:
    """A table for each published study, with its known defects."""
    blocks: list[Block] = []
    for name, rows in table.frame.groupby("study", sort=False):
        source = published_studies()[str(name)]
        title = f"{name}: published, ours, bound, verdict"
        blocks += [
            Text(f"{source.citation}. {source.what}. {source.machine}."),
            Table("", title, rows, columns=_STUDY_COLUMNS),
            Text("Known defects of these measurements:"),
            Bullets(tuple(source.defects.values())),
        ]
    return blocks

"""The tables of a report, and its sections after the first page.

A table is a list of columns of the summary, or one of a published study; a section without anything
to show is left out.
"""

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
from analysis.studies.study_tables import study_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_columns import DROPPED_COLUMNS, is_share
from analysis.summary.summary_table import Summary
from analysis.summary.time_breakdown import COLUMNS as LOST_COLUMNS

_COLUMNS: dict[str, Sequence[str]] = {
    "step_times": (
        *("n", "mean_s", "mean_low", "mean_high", "median_s", "std_s", "min_s", "max_s"),
        "samples_per_s",
    ),
    "speedup": (
        *("n", "speedup", "speedup_low", "speedup_high", "bound", "of_bound", "speedup_same_m"),
        *("effect", "flags"),
    ),
    "efficiency": (
        *("ideal_step_s", "efficiency", "efficiency_low", "efficiency_high"),
        *("bubble", "bubble_low", "bubble_high", "recompute_s", "weights_s", "weights_share"),
    ),
    "lost_time": (*LOST_COLUMNS, "mean_s"),
    "sampled": (
        *("epoch_s", "epoch_low", "epoch_high", "epoch_from", "mean_s", "data_s"),
        *("sample_s", "gather_s", "compute_s", "allreduce_s", "sampled_edges_per_s"),
        *("peak_rss_mib", "peak_host_mib"),
    ),
    "noise": (
        *("n", "cells_used", "cells", *DROPPED_COLUMNS, "outliers"),
        *("drift", "cpu_share", "steal_share", "peak_rss_mib"),
    ),
}
_OF_TRAINING = ("lost_time", "sampled", "learnt")
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


def make_tables(found: Summary) -> list[Table]:
    """All tables that have a row; those of a published study only if the run has its model on its
    data.
    """
    measured = found.table[found.table["n"] > 0]
    learnt = [name for name in map(str, measured.columns) if _is_learnt(name)]
    tables = [_table(name, measured, columns) for name, columns in _COLUMNS.items()]
    tables.append(_table("learnt", measured, [*learnt, "cells_used"]))
    compared = frameworks_frame(found)
    title, *words = texts()["tables"]["frameworks"]
    tables.append(Table("frameworks", title, compared, tuple(words), keys=5))
    return [table for table in tables if len(table.frame)] + study_tables(found)


def _is_learnt(name: str) -> bool:
    """Whether a column of the summary is a loss or a share, or a bound of one."""
    stem = name.removesuffix("_low").removesuffix("_high")
    return stem.endswith("_loss") or is_share(stem)


def _table(name: str, rows: pd.DataFrame, columns: Sequence[str]) -> Table:
    """The rows that have a value in the first of these columns."""
    title, *words = texts()["tables"][name]
    keys = [*ROW_KEYS, "phase"]
    if name in _OF_TRAINING:
        rows, keys = rows[rows["phase"] == "train"], keys[:-1]
    rows = rows[rows[columns[0]].notna()] if columns[0] in rows else rows[:0]
    frame = with_study(rows)[[*keys, *(each for each in columns if each in rows)]]
    return Table(name, title, frame.reset_index(drop=True), tuple(words), keys=len(keys))


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

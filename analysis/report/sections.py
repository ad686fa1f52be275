"""The sections of a report after the first page; a section without anything to show is left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from analysis.summary.settings_in_words import ROW_KEYS, with_study

if TYPE_CHECKING:
    import pandas as pd

_ROWS = (*ROW_KEYS, "phase")
_TIMES = ("n", "mean_s", "median_s", "std_s", "min_s", "max_s", "samples_per_s")
_RATIOS = ("speedup", "bound", "of_bound", "efficiency", "bubble", "valid", "flags")
_COUNTS = (
    *("n", "cells_used", "cells", "attempts", "redone"),
    *("warmup_dropped", "profiled_dropped", "outliers"),
)
_NOISE = ("drift", "cpu_share", "steal_share", "switches_per_step", "peak_rss_mib", "startup_s")
_STUDY_COLUMNS = (
    *("table", "setting", "phase", "quantity", "published", "ours", "bound", "verdict", "run"),
)
_IN_OTHER_SECTIONS = {
    *("speedup", "efficiency", "lost_time", "noise", "frameworks", "sampled"),
    *("boca_conclusions", "corrected_study"),
}
_LEARNT = re.compile(
    r"train_(loss|accuracy)|test_at_best_val_accuracy"
    r"|(val|test)_(accuracy|auc|mrr|hits@[0-9]+)|test_loss"
)
"""Columns that say how well a row learnt."""


def report_sections(
    summary: pd.DataFrame, tables: Sequence[Table], figures: Figures
) -> list[Section]:
    """The sections in their order."""
    rows, named = with_study(summary), {table.name: table for table in tables}
    made: dict[tuple[str, str], list[Block]] = {
        ("summary", "Summary"): _summary(rows),
        ("speed", "Speedup and efficiency"): _speed(rows, figures),
        ("learning", "Loss and accuracy"): _learning(rows, figures),
        ("frameworks", "Ours, PyG and DGL"): [
            *([named["frameworks"]] if "frameworks" in named else []),
            *figures.of_section("frameworks"),
        ],
        ("chunks", "Graphs in chunks"): [*figures.of_section("chunks")],
        ("sampled", "Sampled mini-batches"): _sampled(named, figures),
        ("tables", "Published tables"): _published(tables),
        ("corrected", "The corrected study"): _corrected(named),
        ("timeline", "Timeline"): _timeline(figures),
        ("statistics", "Statistics"): _statistics(rows),
        ("left-out", "Figures left out"): _left_out(figures),
    }
    return [Section(*names, tuple(blocks)) for names, blocks in made.items() if blocks]


def _summary(rows: pd.DataFrame) -> list[Block]:
    """The most important columns of summary.csv, training and testing."""
    titles = (
        "Seconds a mini-batch, barrier to barrier. More columns are in summary.csv",
        "Speedup of samples a second over the baseline; efficiency is the ideal step over the "
        "measured one, bubble the share of rank-time spent waiting for other ranks (with what "
        "lies between spans of work; one rank waits for nobody)",
    )
    return [
        page_table(rows, title, (*_ROWS, *columns), keys=len(_ROWS))
        for title, columns in zip(titles, (_TIMES, _RATIOS), strict=True)
    ]


def _speed(rows: pd.DataFrame, figures: Figures) -> list[Block]:
    """How each configuration differs from its baseline, in words, and figures."""
    blocks: list[Block] = []
    if "effect" in rows and len(compared := rows[rows["effect"].notna() & _trains(rows)]):
        title = (
            "Training throughput against the baseline in words, an effect smaller than its "
            "interval is called so; and against the sequential run with the same micro-batches"
        )
        columns = (*ROW_KEYS, "effect", "speedup_from", "speedup_same_m", "note")
        blocks.append(page_table(compared, title, columns, keys=len(ROW_KEYS)))
    return [*blocks, *figures.of_section("speed")]


def _trains(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows["phase"] == "train"


def _learning(rows: pd.DataFrame, figures: Figures) -> list[Block]:
    """Losses, and how well was learnt."""
    known = [
        name
        for name in sorted(filter(_LEARNT.fullmatch, rows.columns), key=lambda n: n[:2] != "tr")
        if rows[name].notna().any()
    ]
    blocks: list[Block] = []
    if known:
        title = (
            "Last losses, accuracies and ranks of links: means, with intervals where there are "
            "several seeds; repeats of one seed learn the same"
        )
        columns = (*ROW_KEYS, "cells_used", *known)
        blocks.append(page_table(rows[_trains(rows)], title, columns, keys=len(ROW_KEYS)))
    return [*blocks, *figures.of_section("learning")]


def _sampled(tables: dict[str, Table], figures: Figures) -> list[Block]:
    """Training on sampled mini-batches; which of the study's conclusions hold comes first."""
    if "sampled" not in tables:
        return []
    words = Text(
        "Sampling a mini-batch is part of its step. The last mini-batch of an epoch has the "
        "samples that are left: it counts in every mean, and is compared with no other in warm-up, "
        "outliers, drift, medians of steps and efficiency."
    )
    shown = [tables[name] for name in ("boca_conclusions", "sampled") if name in tables]
    noted = [block for table in shown for block in (table, Bullets(table.notes))]
    return [*noted[:-2], *figures.of_section("sampled"), words, *noted[-2:]]


def _published(tables: Sequence[Table]) -> list[Block]:
    """Published tables next to ours; a note is under the first table with it."""
    blocks: list[Block] = []
    shown: set[str] = set()
    for one in tables:
        if one.name not in _IN_OTHER_SECTIONS:
            fresh = tuple(note for note in one.notes if note not in shown)
            blocks += [one, *([Bullets(fresh)] if fresh else [])]
            shown.update(fresh)
    title = "Each published table, with the rows of this run"
    return [Folded(title, tuple(blocks))] if blocks else []


def _corrected(tables: dict[str, Table]) -> list[Block]:
    """A table for each published study, with its known defects."""
    if "corrected_study" not in tables:
        return []
    study = tables["corrected_study"].frame
    blocks: list[Block] = []
    for name, source in published_studies().items():
        rows = study[study["study"] == name]
        if len(rows):
            title = f"{name}: published, ours, bound, verdict"
            blocks += [
                Text(f"{source.citation}. {source.what}. {source.machine}."),
                page_table(rows, title, _STUDY_COLUMNS),
                Text("Known defects of these measurements:"),
                Bullets(tuple(source.defects.values())),
            ]
    return blocks


def _timeline(figures: Figures) -> list[Block]:
    """Timelines of measured and ideal steps."""
    pictures = figures.of_section("timeline")
    words = Text(
        "One training step of a cell, rank by rank, and the same schedule with the same forward "
        "and backward seconds and nothing else. The bubble is waited rank-time over all "
        "rank-time, with what lies between spans; one rank waits for nobody."
    )
    return [words, *pictures] if pictures else []


def _statistics(rows: pd.DataFrame) -> list[Block]:
    """How the numbers were computed; warm-up, outliers and noise of each configuration."""
    blocks: list[Block] = [Bullets(tuple(texts()["statistics"]))]
    if len(rows):
        noise = (
            "The noise of the machine: processor time over busy time, steal over wall time, "
            "drift of the last third against the first"
        )
        for title, columns in (("What was counted", _COUNTS), (noise, _NOISE)):
            blocks.append(page_table(rows, title, (*_ROWS, *columns), keys=len(_ROWS)))
    return blocks


def _left_out(figures: Figures) -> list[Block]:
    """The figures that were left out, and why."""
    title = "Figures that this run has no data for"
    columns = ("figure", "reason")
    return [rows_table(title, columns, figures.left_out)] if figures.left_out else []

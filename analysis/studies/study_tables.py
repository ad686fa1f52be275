"""The tables of a study: published numbers with ours beside them, and all comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.render.number_text import significant
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.compare_study import (
    Comparison,
    Finding,
    compare_study,
    selected,
)
from analysis.studies.study import (
    Claim,
    StudyTable,
    studies_of,
)
from analysis.studies.study_rows import Row
from analysis.summary.summary_table import Summary

STUDY_COLUMNS = [
    *("study", "table", "model", "setting", "phase", "quantity"),
    *("published", "ours", "ours_low", "ours_high", "bound", "run", "verdict"),
]


def study_tables(summary: Summary) -> list[Table]:
    """All tables of the studies whose model was run on their data; empty without any."""
    comparisons = [compare_study(study, summary) for study in studies_of(summary.run)]
    if not comparisons:
        return []
    tables = [table for one in comparisons for table in _tables_of(one)]
    rows = [row for one in comparisons for row in _comparison_rows(one)]
    return [*tables, _corrected_study(pd.DataFrame(rows, columns=STUDY_COLUMNS))]


def _tables_of(found: Comparison) -> Iterator[Table]:
    study = found.study
    if study.conclusions:
        claims = [claim for claim in study.claims if claim.text]
        frame = pd.DataFrame([_conclusion(claim, found.findings) for claim in claims])
        rule = (
            f"A verdict rests on intervals over {FEWEST_PAIRS} runs or more; the corrected study "
            "lists all comparisons, each of rows that are equal in all other settings."
        )
        notes = (*study.notes(*study.defects), rule)
        yield Table(f"{study.name}_conclusions", study.conclusions, frame, notes)
    for table in study.tables:
        frame = _side_by_side(table, found)
        names = frame[list(table.keys)].astype(str).agg(", ".join, axis=1)
        paper = frame.assign(setting=names)[["setting", *table.paper]]
        yield Table(
            f"{study.name}_{table.name}",
            table.title,
            frame,
            (*study.notes(*table.defects), *table.notes),
            paper,
        )


def _side_by_side(table: StudyTable, found: Comparison) -> pd.DataFrame:
    """Published rows with ours of the same keys, and ours that nobody published."""
    keys, columns = list(table.keys), [*table.keys, *table.columns]
    expected = [*table.keys, *table.published.values()]
    measured = [row for row in found.measured if row.is_measured]
    published, ours = (selected(rows, table.select) for rows in (found.published, measured))
    printed = _frame(published, expected)
    names = {column: name for name, column in table.published.items()}
    printed = printed.rename(columns=names).drop_duplicates()
    mine = [name for name in table.columns if name not in table.published]
    if not ours:
        return printed.reindex(columns=columns)
    how: Any = "left" if table.only_published else "outer"
    beside = printed.merge(_frame(ours, [*keys, *mine]), on=keys, how=how, sort=False)
    return beside.reindex(columns=columns)


def _frame(rows: Sequence[Row], columns: list[str]) -> pd.DataFrame:
    found = [{name: row.columns.get(name) for name in columns} for row in rows]
    return pd.DataFrame(found, columns=pd.Index(columns))


def _conclusion(claim: Claim, findings: Sequence[Finding]) -> dict[str, Any]:
    """The range of the published numbers and of ours, and how the conclusion comes out."""
    findings = [one for one in findings if one.claim is claim]
    measured = [one for one in findings if one.ours is not None]
    tables = dict.fromkeys(one.table for one in findings if one.table)
    return {
        "conclusion": claim.text,
        "table": claim.table or next(iter(tables), ""),
        "quantity": claim.name or claim.quantity,
        "published": _range([one.published for one in findings]),
        "ours": _range([one.ours.value for one in measured if one.ours]),
        "verdict": _in_all(measured),
    }


def _range(values: Sequence[float | None]) -> str:
    """The least and the greatest, or the one."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(significant(value, 3) for value in known[:1] + known[-1:]))


def _in_all(measured: Sequence[Finding]) -> str:
    """Counts such as `holds in 2 of 3, cannot be decided in 1`; the verdict of a single
    comparison."""
    if not measured:
        return "not measured"
    counts = Counter(one.judgement[0] for one in measured)
    if len(counts) == 1:
        (outcome,) = counts
        return outcome if len(measured) == 1 else f"{outcome} in all {len(measured)}"
    first, *others = counts.most_common()
    words = [f"{first[0]} in {first[1]} of {len(measured)}"]
    return ", ".join(words + [f"{outcome} in {count}" for outcome, count in others])


def _comparison_rows(found: Comparison) -> Iterator[dict[str, Any]]:
    for one in found.findings:
        yield {
            "study": found.study.name,
            "table": one.table,
            "model": one.model,
            "setting": one.setting,
            "phase": one.phase,
            "quantity": one.claim.name or one.claim.quantity,
            "published": one.published,
            **(one.ours.columns("ours") if one.ours else {}),
            "bound": one.bound,
            "run": one.run,
            "verdict": one.verdict,
        }


def _corrected_study(frame: pd.DataFrame) -> Table:
    columns = ["study", "setting", "quantity", "published", "ours", "ours_low", "ours_high"]
    paper = frame.assign(
        study=frame["study"] + " " + frame["table"].astype(str),
        setting=frame["setting"] + ", " + frame["phase"],
    )
    return Table(
        "corrected_study",
        "The corrected study: published, ours, the bound, and the verdict",
        frame,
        ("Seconds of different machines are not compared; speedups and shares are.",),
        paper[[*columns, "bound", "verdict"]],
    )

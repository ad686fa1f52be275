"""The tables of a study: published numbers with ours beside them, and all comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.render.number_text import significant
from analysis.statistics.sample import FEWEST_PAIRS
from analysis.studies.compare_study import Comparison, Finding, compare_study
from analysis.studies.study import Claim, StudyTable, published_studies
from analysis.studies.study_rows import Row, selected
from analysis.summary.summary_table import Summary

_COLUMNS = [
    *("study", "table", "model", "setting", "phase", "quantity"),
    *("published", "ours", "ours_low", "ours_high", "bound", "run", "verdict"),
]
_RULE = (
    f"A verdict rests on intervals over {FEWEST_PAIRS} runs or more; the corrected study lists all "
    "comparisons, each of rows that are equal in all other settings."
)


def study_tables(summary: Summary) -> list[Table]:
    """All tables of the studies whose model was run on their data; empty without any."""
    cells = summary.run.cells
    measured = set(zip(cells["model"], cells["data"], strict=True))
    comparisons = [
        compare_study(study, summary)
        for study in published_studies().values()
        if any((model, data) in measured for model in study.models for data in study.data)
    ]
    if not comparisons:
        return []
    rows = [
        _comparison_row(found.study.name, one) for found in comparisons for one in found.findings
    ]
    tables = [table for found in comparisons for table in _tables_of(found)]
    corrected = Table(
        "corrected_study",
        "The corrected study: published, ours, the bound, and the verdict",
        pd.DataFrame(rows, columns=_COLUMNS),
        ("Seconds of different machines are not compared; speedups and shares are.",),
        ("study", "table", "setting", "phase", "quantity", "published", "ours", "bound", "verdict"),
    )
    return [*tables, corrected]


def _tables_of(found: Comparison) -> Iterator[Table]:
    study = found.study
    if study.conclusions:
        claims = [claim for claim in study.claims if claim.text]
        frame = pd.DataFrame([_conclusion(claim, found.findings) for claim in claims])
        notes = (*study.notes(*study.defects), _RULE)
        yield Table(f"{study.name}_conclusions", study.conclusions, frame, notes)
    for table in study.tables:
        frame = _side_by_side(table, found)
        notes, paper = (*study.notes(*table.defects), *table.notes), (*table.keys, *table.paper)
        yield Table(f"{study.name}_{table.name}", table.title, frame, notes, paper)


def _side_by_side(table: StudyTable, found: Comparison) -> pd.DataFrame:
    """Published rows with ours of the same keys, and ours that nobody published."""
    keys, columns = list(table.keys), [*table.keys, *table.columns]
    printed = _frame(selected(found.published, table.select), [*keys, *table.published.values()])
    names = {column: name for name, column in table.published.items()}
    printed = printed.rename(columns=names).drop_duplicates()
    ours = selected([row for row in found.measured if row.runs], table.select)
    mine = [name for name in table.columns if name not in table.published]
    how: Any = "left" if table.only_published or not ours else "outer"
    beside = printed.merge(_frame(ours, [*keys, *mine]), on=keys, how=how, sort=False)
    return beside.reindex(columns=columns)


def _frame(rows: Sequence[Row], columns: list[str]) -> pd.DataFrame:
    found = [{name: row.columns.get(name) for name in columns} for row in rows]
    return pd.DataFrame(found, columns=pd.Index(columns), dtype=None if found else object)


def _conclusion(claim: Claim, findings: Sequence[Finding]) -> dict[str, Any]:
    """The range of the published numbers and of ours, and how the conclusion comes out."""
    findings = [one for one in findings if one.claim is claim]
    printed = [one.printed.value.value for one in findings if one.printed]
    ours = [one.ours for one in findings if one.ours]
    outcomes = Counter(one.judgement[0] for one in ours).most_common()
    counts = ", ".join(f"{outcome} in {count} of {len(ours)}" for outcome, count in outcomes)
    return {
        "conclusion": claim.text,
        "table": claim.table,
        "quantity": claim.name or claim.quantity,
        "published": _range(printed),
        "ours": _range([one.value.value for one in ours]),
        "verdict": counts or "not measured",
    }


def _range(values: Sequence[float]) -> str:
    """The least and the greatest, or the one."""
    known = sorted(values)
    return " to ".join(dict.fromkeys(significant(value, 3) for value in known[:1] + known[-1:]))


def _comparison_row(study: str, one: Finding) -> dict[str, Any]:
    known = one.side.row.columns
    return {
        "study": study,
        "table": one.claim.table.format_map((one.printed or one.side).row.columns),
        "model": known["model_name"],
        "setting": one.side.setting,
        "phase": known["phase"],
        "quantity": one.claim.name or one.claim.quantity,
        "published": one.printed.value.value if one.printed else None,
        **(one.ours.value.columns("ours") if one.ours else {}),
        "bound": one.side.bound,
        "run": known.get("run", ""),
        "verdict": one.verdict,
    }

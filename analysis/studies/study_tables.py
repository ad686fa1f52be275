"""The tables of a study: published numbers with ours beside them, and all comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.render.number_text import significant
from analysis.statistics.sample import FEWEST_PAIRS
from analysis.studies.compare_study import Finding, compare_rows, with_accuracy_lost
from analysis.studies.study import Claim, Study, StudyTable, published_studies
from analysis.studies.study_rows import Row, measured_rows, published_rows, selected
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
    tables, rows = [], []
    for study in published_studies().values():
        if any((model, data) in measured for model in study.models for data in study.data):
            printed = with_accuracy_lost(published_rows(study))
            ours = with_accuracy_lost(measured_rows(study, summary))
            findings = list(compare_rows(study.claims, printed, ours))
            rows += [_comparison_row(study.name, one) for one in findings]
            if study.conclusions:
                tables.append(_conclusions(study, findings))
            tables += [_side_by_side(study, table, printed, ours) for table in study.tables]
    if not tables:
        return []
    corrected = Table(
        "corrected_study",
        "The corrected study: published, ours, the bound, and the verdict",
        pd.DataFrame(rows, columns=_COLUMNS),
        ("Seconds of different machines are not compared; speedups and shares are.",),
        ("study", "table", "setting", "phase", "quantity", "published", "ours", "bound", "verdict"),
    )
    return [*tables, corrected]


def _conclusions(study: Study, findings: Sequence[Finding]) -> Table:
    claims = [claim for claim in study.claims if claim.text]
    frame = pd.DataFrame([_conclusion(claim, findings) for claim in claims])
    notes = (*study.notes(*study.defects), _RULE)
    return Table(f"{study.name}_conclusions", study.conclusions, frame, notes)


def _side_by_side(
    study: Study, table: StudyTable, published: Sequence[Row], measured: Sequence[Row]
) -> Table:
    """Published rows with ours of the same keys, and ours that nobody published."""
    keys, columns = list(table.keys), [*table.keys, *table.columns]
    printed = _frame(selected(published, table.select), [*keys, *table.published.values()])
    names = {column: name for name, column in table.published.items()}
    printed = printed.rename(columns=names).drop_duplicates()
    ours = selected([row for row in measured if row.runs], table.select)
    mine = [name for name in table.columns if name not in table.published]
    how: Any = "left" if table.only_published or not ours else "outer"
    beside = printed.merge(_frame(ours, [*keys, *mine]), on=keys, how=how, sort=False)
    frame, paper = beside.reindex(columns=columns), (*keys, *table.paper)
    notes = (*study.notes(*table.defects), *table.notes)
    return Table(f"{study.name}_{table.name}", table.title, frame, notes, paper)


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

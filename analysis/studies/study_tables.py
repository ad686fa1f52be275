"""The tables of a study: published numbers with ours beside them, and all comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.render.number_text import significant
from analysis.statistics.sample import FEWEST_PAIRS
from analysis.studies.compare_with_published import compare_claim, with_accuracy_lost
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
            compared = [
                (claim, list(compare_claim(claim, printed, ours))) for claim in study.claims
            ]
            rows += [{"study": study.name, **line} for _, lines in compared for line in lines]
            if study.conclusions:
                frame = pd.DataFrame([_conclusion(*one) for one in compared if one[0].text])
                notes = (*study.notes(*study.defects), _RULE)
                tables.append(Table(f"{study.name}_conclusions", study.conclusions, frame, notes))
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


def _conclusion(claim: Claim, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The range of the published numbers and of ours, and how the conclusion comes out."""
    ours = [line for line in lines if "ours" in line]
    outcomes = Counter(line["outcome"] for line in ours).most_common()
    counts = ", ".join(f"{outcome} in {count} of {len(ours)}" for outcome, count in outcomes)
    return {
        "conclusion": claim.text,
        "table": claim.table,
        "quantity": claim.name or claim.quantity,
        "published": _range([line["published"] for line in lines]),
        "ours": _range([line["ours"] for line in ours]),
        "verdict": counts or "not measured",
    }


def _range(values: Sequence[float | None]) -> str:
    """The least and the greatest, or the one."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(significant(value, 3) for value in known[:1] + known[-1:]))

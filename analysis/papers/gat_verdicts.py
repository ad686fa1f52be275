"""Verdicts on Dearing and Wang's tables of GAT: published, ours, the bound, what can be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.papers.claims import Claim, Finding
from analysis.papers.gat_claims import CLAIMS
from analysis.papers.gat_findings import gat_findings
from analysis.papers.gat_runs import GatRows
from analysis.papers.published_data import published_studies, read_published, study_notes
from analysis.render.interval_text import significant
from analysis.render.named_table import NamedTable
from analysis.stats.pairs import FEWEST_PAIRS

_COMPUTED_AGAIN = (
    "Under checkpoint except_last, which is torchgpipe's default, k chunks compute k - 1 of their "
    "forwards again and one chunk none: more chunks take longer for that too (recompute_s)."
)


def gat_verdict_rows(rows: GatRows) -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for tables 2 and 3."""
    yield from _accuracies(rows)
    for finding in gat_findings(rows):
        ours = finding.ours
        yield {
            "study": "dearing",
            "table": finding.claim.table,
            "model": "gat",
            "setting": finding.setting,
            "phase": finding.claim.phase,
            "quantity": finding.claim.quantity,
            "published": finding.published,
            "ours": ours.value if ours else None,
            "ours_low": ours.low if ours else None,
            "ours_high": ours.high if ours else None,
            "bound": finding.bound,
            "run": finding.run,
            "verdict": finding.verdict,
        }


def gat_conclusions(rows: GatRows) -> NamedTable:
    """A row a conclusion: the range of the published numbers and of ours, and how it comes out."""
    findings = gat_findings(rows)
    frame = pd.DataFrame(
        [_conclusion(claim, [one for one in findings if one.claim is claim]) for claim in CLAIMS]
    )
    notes = study_notes(published_studies()["dearing"], "edges", "rebuild", "devices")
    if any(row.settings["checkpoint"] == "except_last" for row in rows):
        notes = (*notes, _COMPUTED_AGAIN)
    rule = f"A verdict rests on intervals over {FEWEST_PAIRS} runs or more; the corrected study "
    return NamedTable(
        "dearing_conclusions",
        "Dearing and Wang's conclusions, and those that follow from chunks without lost edges",
        frame,
        (*notes, f"{rule}lists all comparisons."),
    )


def _conclusion(claim: Claim, findings: Sequence[Finding]) -> dict[str, Any]:
    measured = [one for one in findings if one.ours is not None]
    return {
        "conclusion": claim.text,
        "table": claim.table,
        "quantity": claim.quantity,
        "published": _range([one.published for one in findings]),
        "ours": _range([one.ours.value for one in measured if one.ours]),
        "verdict": _in_all(measured),
    }


def _range(values: Sequence[float | None]) -> str:
    """The least and the greatest, or the one."""
    known = sorted(value for value in values if value is not None)
    shown = dict.fromkeys(significant(value, 3) for value in known[:1] + known[-1:])
    return " to ".join(shown)


def _in_all(measured: Sequence[Finding]) -> str:
    """Such as `holds in 2 of 3, cannot be told in 1`; of one comparison its verdict."""
    if not measured:
        return "not measured"
    counts = Counter(one.judged for one in measured)
    if len(counts) == 1:
        (judged,) = counts
        return judged if len(measured) == 1 else f"{judged} in all {len(measured)}"
    first, *others = counts.most_common()
    words = [f"{first[0]} in {first[1]} of {len(measured)}"]
    return ", ".join(words + [f"{judged} in {count}" for judged, count in others])


def _accuracies(rows: GatRows) -> Iterator[dict[str, Any]]:
    """Table 2: test accuracy on one device, the whole graph at once."""
    for printed in read_published("dearing_table2_single_device").to_dict("records"):
        key = (str(printed["dataset"]).lower(), printed["compute"], printed["framework"])
        common = {
            "study": "dearing",
            "table": "2",
            "model": "gat",
            "setting": f"{key[0]}, one {key[1]}, {key[2]}",
            "phase": "test",
            "quantity": "test_accuracy",
            "published": printed["test_acc"],
            "verdict": "Published: one run, whose optimizer and seed are not given",
        }
        measured = [
            row
            for row in rows.on_one_device
            if (row.data, row.compute, row.framework) == key and "test_accuracy" in row.learnt
        ]
        for row in measured:
            yield {
                **common,
                "ours": row.learnt["test_accuracy"],
                "ours_low": row.learnt["test_accuracy_low"],
                "ours_high": row.learnt["test_accuracy_high"],
                "run": row.label,
            }
        if not measured:
            yield common

"""Conclusions of a study as rows: each comparison, and what all comparisons of one come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.render.number_text import significant
from analysis.studies.claims import Claim, Finding


def finding_row(finding: Finding) -> dict[str, Any]:
    """A row of the corrected study, but for the study and the model."""
    ours = finding.ours
    return {
        "table": finding.claim.table,
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


def conclusions_frame(claims: Sequence[Claim], findings: Sequence[Finding]) -> pd.DataFrame:
    """A row a claim: the range of the published numbers and of ours, and how it comes out."""
    return pd.DataFrame(
        [_conclusion(claim, [one for one in findings if one.claim is claim]) for claim in claims]
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

"""Compares a run with a published study: selects rows, pairs them, and judges their intervals.

The same rules are applied to the rows of the run and to the published rows, so that a published
quantity and a measured one mean the same. Only rows that are equal in all settings but those of the
pair are compared; a conclusion holds or does not by an interval over three runs or more alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from analysis.statistics.intervals import Interval
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.quantities import BOUNDS, QUANTITIES, like
from analysis.studies.study import Claim, Study
from analysis.studies.study_rows import Row, measured_rows, published_rows
from analysis.summary.baseline_and_speedup import Baseline, find_baseline
from analysis.summary.summary_table import Summary

Outcome = Literal["holds", "does not hold", "cannot be decided", "not measured"]


@dataclass(frozen=True)
class Finding:
    """One comparison, published or measured or both; `ours` is None where a run lacks it."""

    claim: Claim
    setting: str
    phase: str
    table: str
    model: str
    published: float | None = None
    ours: Interval | None = None
    runs: int = 0
    """Runs of the side that has fewer."""
    run: str = ""
    """Which rows of the run were compared."""
    bound: float | None = None
    shares_processors: bool = False
    """Whether ranks had to take turns on fewer processors or GPUs."""
    published_verdict: str = ""

    @property
    def outcome(self) -> Outcome:
        """Whether the conclusion holds, by our interval."""
        ours, claim = self.ours, self.claim
        if ours is None:
            return "not measured"
        if ours.low is None or ours.high is None or self.runs < FEWEST_PAIRS:
            return "cannot be decided"
        if claim.of_devices and self.shares_processors:
            return "cannot be decided"
        if self.is_negligible:
            return "does not hold"
        if not ours.excludes(claim.nothing):
            return "cannot be decided"
        side = "more" if ours.low > claim.nothing else "less"
        return "holds" if claim.expected in ("either", side) else "does not hold"

    @property
    def is_negligible(self) -> bool:
        ours, least = self.ours, self.claim.negligible
        if ours is None or ours.low is None or ours.high is None or least is None:
            return False
        return max(ours.high - self.claim.nothing, self.claim.nothing - ours.low) < least

    @property
    def verdict(self) -> str:
        """The verdict in words, with the reason where it is unknown."""
        if not self.claim.text:
            words = [self.published_verdict, _within_bound(self.ours, self.bound)]
            return ". ".join(filter(None, words))
        why = ""
        if self.outcome == "cannot be decided":
            why = f", {self._why_undecided()}"
        elif self.outcome == "does not hold" and self.is_negligible:
            why = f", the difference is less than {self.claim.negligible:g}"
        return f"{self.claim.text}: {self.outcome}{why}"

    def _why_undecided(self) -> str:
        assert self.ours is not None
        if self.ours.low is None or self.ours.high is None:
            return f"no interval, {self.ours.basis}"
        if self.claim.of_devices and self.shares_processors:
            return "its ranks took turns on fewer processors"
        if self.runs < FEWEST_PAIRS:
            return f"{self.runs} runs are fewer than {FEWEST_PAIRS}"
        return f"the interval contains {self.claim.nothing:g}"


def _within_bound(ours: Interval | None, most: float | None) -> str:
    if ours is None or most is None:
        return ""
    if ours.value <= most:
        return "Ours is within the bound"
    if ours.low is None:
        return f"Ours is above the bound; no interval: {ours.basis}"
    by = "less" if ours.low <= most else "more"
    return f"Ours is above the bound by {by} than its interval"


@dataclass(frozen=True)
class Comparison:
    """A study's published rows, the run's rows, and what comparing them found."""

    study: Study
    published: Sequence[Row]
    measured: Sequence[Row]
    findings: Sequence[Finding] = field(default_factory=tuple)

    def of(self, claim: Claim) -> list[Finding]:
        return [one for one in self.findings if one.claim is claim]


def compare_study(study: Study, summary: Summary) -> Comparison:
    """All comparisons, claim by claim; published ones that the run lacks come last."""
    published, planned = published_rows(study), measured_rows(study, summary)
    measured = [row for row in planned if row.is_measured]
    findings: list[Finding] = []
    for claim in study.claims:
        printed = {
            (one.phase, one.model, one.setting): one
            for one in _findings(claim, published, claim.published_select or claim.select)
        }
        of = planned if claim.quantity == "unfinished" else measured
        ours = list(_findings(claim, of, claim.select))
        if not claim.text:
            ours = [one for one in ours if (one.phase, one.model, one.setting) in printed]
        findings += [_beside(one, printed.get((one.phase, one.model, one.setting))) for one in ours]
        known = {(one.phase, one.model, one.setting) for one in ours}
        findings += [one for key, one in printed.items() if key not in known]
    return Comparison(study, published, measured, findings)


def _beside(ours: Finding, printed: Finding | None) -> Finding:
    if printed is None:
        return ours
    return replace(
        ours,
        published=printed.published,
        table=printed.table,
        published_verdict=printed.published_verdict,
    )


def _findings(claim: Claim, rows: Sequence[Row], select: str) -> Iterator[Finding]:
    for row in selected(rows, select):
        other = _partner(row, rows, claim)
        if claim.pair is not None and other is None:
            continue
        value = QUANTITIES[claim.quantity](row, other, rows)
        if value is None:
            continue
        partners = [row] if other is None else [row, other]
        most = BOUNDS[claim.bound](row, other) if isinstance(claim.bound, str) else claim.bound
        found = Finding(
            claim,
            claim.setting.format_map(row.columns),
            claim.phase or str(row.columns["phase"]),
            claim.table or str(row.columns["table"]),
            str(row.columns["model_name"]),
            bound=most,
        )
        if row.configuration is None:
            verdict = _verdict_of_published(claim, row, value.value, most)
            yield replace(found, published=value.value, published_verdict=verdict)
            continue
        yield replace(
            found,
            ours=value,
            runs=min(len(one.means) for one in partners),
            run=row.label,
            shares_processors=any(one.shares_processors for one in partners),
        )


def selected(rows: Sequence[Row], query: str) -> list[Row]:
    """The rows that a query of pandas chooses."""
    if not rows:
        return []
    frame = pd.DataFrame([row.columns for row in rows])
    return [rows[place] for place in frame.query(query, engine="python").index]


def _verdict_of_published(claim: Claim, row: Row, value: float, most: float | None) -> str:
    frame = pd.DataFrame([row.columns | {"value": value, "bound": most}])
    found = (text for query, text in claim.verdicts if len(frame.query(query, engine="python")))
    return next(found, "")


def _partner(row: Row, rows: Sequence[Row], claim: Claim) -> Row | None:
    if claim.pair is None:
        return None
    if claim.pair == "baseline":
        return _baseline(row, rows)
    changes = dict(claim.pair)
    if changes.get("workers") == "fewer":
        counts = {one.columns["workers"] for one in rows}
        fewer = sorted(count for count in counts if count < row.columns["workers"])
        tries = ({**changes, "workers": count} for count in reversed(fewer))
        return next(filter(None, (like(row, rows, one, claim.free) for one in tries)), None)
    return like(row, rows, changes, claim.free)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    if row.configuration is None:
        sequential = {"layout": "seq", "microbatches": 1, "phase": row.columns["phase"]}
        for one in rows:
            if all(one.columns.get(key) == value for key, value in sequential.items()):
                return one
        return None
    configurations = [one.configuration for one in rows if one.configuration is not None]
    base, _ = find_baseline(row.configuration, configurations, Baseline())
    whole = (one for one in rows if one.configuration is base and one.sample is None)
    return next(whole, None) if base else None

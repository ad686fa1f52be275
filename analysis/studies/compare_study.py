"""Compares a run with a published study: selects rows, pairs them, and judges their intervals.

The same rules are applied to the rows of the run and to the published rows, so that a published
quantity and a measured one mean the same. Only rows that are equal in all settings but those of the
pair are compared; a conclusion holds or does not by an interval over three runs or more alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from analysis.statistics.intervals import Interval
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.quantities import OF_PAIRS, like, with_accuracy_lost
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
    bound: float | None = None
    published: float | None = None
    published_verdict: str = ""
    ours: Interval | None = None
    runs: int = 0
    """Runs of the side that has fewer."""
    run: str = ""
    """Which rows of the run were compared."""
    shares_processors: bool = False
    """Whether ranks had to take turns on fewer processors or GPUs."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for a published and a measured comparison of the same."""
        return self.phase, self.model, self.setting

    @property
    def judgement(self) -> tuple[Outcome, str]:
        """Whether the conclusion holds, by our interval; and why it does not or is undecided."""
        ours, claim = self.ours, self.claim
        if ours is None:
            return "not measured", ""
        why = ""
        if ours.low is None or ours.high is None:
            why = f"no interval, {ours.basis}"
        elif claim.of_devices and self.shares_processors:
            why = "its ranks took turns on fewer processors"
        elif self.runs < FEWEST_PAIRS:
            why = f"{self.runs} runs are fewer than {FEWEST_PAIRS}"
        if why or ours.low is None or ours.high is None:
            return "cannot be decided", f", {why}"
        furthest = max(ours.high - claim.nothing, claim.nothing - ours.low)
        if claim.negligible is not None and furthest < claim.negligible:
            return "does not hold", f", the difference is less than {claim.negligible:g}"
        if not ours.excludes(claim.nothing):
            return "cannot be decided", f", the interval contains {claim.nothing:g}"
        side = "more" if ours.low > claim.nothing else "less"
        return "holds" if claim.expected in ("either", side) else "does not hold", ""

    @property
    def verdict(self) -> str:
        """The verdict in words, with the reason where it is unknown."""
        if self.claim.text:
            outcome, why = self.judgement
            return f"{self.claim.text}: {outcome}{why}"
        words = [self.published_verdict]
        if self.ours is not None and self.bound is not None:
            above = self.ours.value > self.bound
            if not above:
                words.append("Ours is within the bound")
            elif self.ours.low is None:
                words.append(f"Ours is above the bound; no interval: {self.ours.basis}")
            else:
                by = "less" if self.ours.low <= self.bound else "more"
                words.append(f"Ours is above the bound by {by} than its interval")
        return ". ".join(filter(None, words))


@dataclass(frozen=True)
class Comparison:
    """A study's published rows, the run's rows, and what comparing them found."""

    study: Study
    published: Sequence[Row]
    measured: Sequence[Row]
    findings: Sequence[Finding]


def compare_study(study: Study, summary: Summary) -> Comparison:
    """All comparisons, claim by claim; published ones that the run lacks come last."""
    published = with_accuracy_lost(published_rows(study))
    measured = with_accuracy_lost(measured_rows(study, summary))
    findings: list[Finding] = []
    for claim in study.claims:
        select = claim.published_select or claim.select
        printed = {one.key: one for one in _findings(claim, published, select)}
        ours = list(_findings(claim, measured, claim.select))
        if not claim.text:
            ours = [one for one in ours if one.key in printed]
        for one in ours:
            beside = printed.get(one.key)
            findings.append(
                replace(
                    one,
                    published=beside.published,
                    table=beside.table,
                    published_verdict=beside.published_verdict,
                )
                if beside
                else one
            )
        matched = {one.key for one in ours}
        findings += [one for key, one in printed.items() if key not in matched]
    return Comparison(study, published, measured, findings)


def _findings(claim: Claim, rows: Sequence[Row], select: str) -> Iterator[Finding]:
    for row in selected(rows, select):
        other = _partner(row, rows, claim)
        if claim.pair is None:
            value = row.interval(claim.quantity)
        else:
            value = OF_PAIRS[claim.quantity](row, other, rows) if other else None
        if value is None:
            continue
        found = Finding(
            claim,
            claim.setting.format_map(row.columns),
            claim.phase or str(row.columns["phase"]),
            claim.table or str(row.columns["table"]),
            str(row.columns["model_name"]),
            row.columns[claim.bound] if isinstance(claim.bound, str) else claim.bound,
        )
        if row.configuration is None:
            known = pd.DataFrame([row.columns | {"value": value.value, "bound": found.bound}])
            verdicts = (text for query, text in claim.verdicts if len(_query(known, query)))
            yield replace(found, published=value.value, published_verdict=next(verdicts, ""))
            continue
        partners = [row] if other is None else [row, other]
        yield replace(
            found,
            ours=value,
            runs=min(len(one.means) for one in partners),
            run=row.columns["run"],
            shares_processors=any(one.shares_processors for one in partners),
        )


def _query(frame: pd.DataFrame, query: str) -> pd.DataFrame:
    return frame.query(query, engine="python")


def selected(rows: Sequence[Row], query: str) -> list[Row]:
    """The rows that a query of pandas chooses."""
    if not rows:
        return []
    return [rows[place] for place in _query(pd.DataFrame([r.columns for r in rows]), query).index]


def _partner(row: Row, rows: Sequence[Row], claim: Claim) -> Row | None:
    if claim.pair is None:
        return None
    if claim.pair == "baseline":
        return _baseline(row, rows)
    changes = dict(claim.pair)
    if changes.get("workers") == "fewer":
        counts = {one.columns["workers"] for one in rows}
        fewer = sorted((n for n in counts if n < row.columns["workers"]), reverse=True)
        tries = (like(row, rows, {**changes, "workers": n}, claim.free) for n in fewer)
        return next(filter(None, tries), None)
    return like(row, rows, changes, claim.free)


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """The sequential run in one micro-batch."""
    if row.configuration is None:
        sequential = {"layout": "seq", "microbatches": 1, "phase": row.columns["phase"]}
        chosen = (
            one for one in rows if all(one.columns.get(k) == v for k, v in sequential.items())
        )
        return next(chosen, None)
    configurations = [one.configuration for one in rows if one.configuration is not None]
    base, _ = find_baseline(row.configuration, configurations, Baseline())
    whole = (one for one in rows if one.configuration is base and "way" not in one.settings)
    return next(whole, None) if base else None

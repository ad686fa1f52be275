"""Compares a run with a published study: selects rows, pairs them, and judges their intervals.

The same rules are applied to the rows of the run and to the published rows, so that a published
quantity and a measured one mean the same. Only rows that are equal in all settings but those of the
pair are compared; a conclusion holds or does not by an interval over three runs or more alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.statistics.intervals import Interval, ratio_of_pairs, t_bounds
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.study import Claim, Study
from analysis.studies.study_rows import Row, measured_rows, published_rows
from analysis.summary.baseline_and_speedup import Baseline, find_baseline
from analysis.summary.frameworks import find_like, same_value
from analysis.summary.summary_table import Summary
from gnnhpc.core.bound_and_bubble import bound

Outcome = Literal["holds", "does not hold", "cannot be decided", "not measured"]
Quantity = Callable[[Row, Row | None, Sequence[Row]], Interval | None]


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
        return "holds" if claim.wanted in ("either", side) else "does not hold"

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
            why = f", {self._why_not_told()}"
        elif self.outcome == "does not hold" and self.is_negligible:
            why = f", the difference is less than {self.claim.negligible:g}"
        return f"{self.claim.text}: {self.outcome}{why}"

    def _why_not_told(self) -> str:
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
        return next(filter(None, (_like(row, rows, one, claim.free) for one in tries)), None)
    return _like(row, rows, changes, claim.free)


def _like(
    row: Row, rows: Sequence[Row], changes: dict[str, Any], free: Sequence[str] = ()
) -> Row | None:
    """The row with these settings that is equal in all others but the free ones."""
    mine = row.configuration
    if mine is not None:
        measured = [one.configuration for one in rows if one.configuration is not None]
        found = find_like(mine, measured, changes, free)
        return next((one for one in rows if found and one.configuration is found), None)
    wanted = {key: v for key, v in {**row.settings, **changes}.items() if key not in free}
    others = (one for one in rows if one is not row)
    return next((one for one in others if not _differing(one, wanted)), None)


def _differing(row: Row, wanted: Mapping[str, Any]) -> set[str]:
    """The settings in which a row differs from these."""
    return {k for k, v in wanted.items() if not same_value(row.settings.get(k), v)}


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


def _speedup(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    """Samples a second of the row over those of the other."""
    assert other is not None
    if row.configuration is None or other.configuration is None:
        work = row.columns.get("work", 1.0) / other.columns.get("work", 1.0)
        return Interval(work * other.columns["seconds"] / row.columns["seconds"], None, None)
    return row.configuration.speedup_over(other.configuration)


def _slowdown(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    assert other is not None
    return _speedup(other, row, rows)


def _ratio_of_speedups(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    """The speedup of the row over the other, over that of the same two with edges cut out once."""
    assert other is not None
    once = [_like(one, rows, {"rebuild": "once"}) for one in (row, other)]
    four = [row, other, *(one for one in once if one is not None)]
    times = [one.means for one in four]
    shared = [key for key in times[0] if all(key in each for each in times)]
    if len(four) < 4 or len(shared) < FEWEST_PAIRS:
        return None
    fast, slow, other_fast, other_slow = (np.array([each[key] for key in shared]) for each in times)
    return ratio_of_pairs(slow / fast, other_slow / other_fast)


def _difference(metric: str) -> Quantity:
    """The row's last accuracy less the other's, seed by seed."""

    def less(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
        assert other is not None
        return difference_of_seeds(row, other, metric)

    return less


def difference_of_seeds(row: Row, other: Row, metric: str) -> Interval | None:
    """The difference over the seeds that both have, or of published rows; None without any."""
    if row.configuration is None:
        return Interval(row.columns[metric] - other.columns[metric], None, None)
    both = pd.concat([row.of_seeds(metric), other.of_seeds(metric)], axis=1).dropna()
    less = (both.iloc[:, 0] - both.iloc[:, 1]).to_numpy()
    if not less.size:
        return None
    basis = f"{less.size} seed{'s' if less.size > 1 else ''}"
    if less.size < FEWEST_PAIRS:
        return Interval(float(less.mean()), None, None, f"of {basis} only")
    low, high = t_bounds(less)
    return Interval(float(less.mean()), float(low), float(high), basis)


def _accuracy_lost(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    """Validation accuracy of the whole graph less that in chunks."""
    whole = whole_graph_of(row, rows)
    return None if whole is None else difference_of_seeds(whole, row, "val_accuracy")


_WHO_COMPUTES = {
    *("layout", "microbatches", "engine", "schedule", "virtual_stages", "balance"),
    *("chunks", "rebuild", "activation_checkpointing", "bucket_mib"),
}
"""What one chunk of a graph may differ in and learn the same."""


def whole_graph_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """The row that learns the same from the whole graph; of several the one most like `row`."""
    found = [
        one
        for one in rows
        if one.columns["chunk_count"] == 1 and _differing(one, row.settings) <= _WHO_COMPUTES
    ]
    return min(found, key=lambda one: len(_differing(one, row.settings)), default=None)


def _waiting(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    return row.waiting


def _unfinished(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    """The share of the cells that did not end; why is not known, so it has no interval."""
    assert row.configuration is not None
    status = row.configuration.cells["status"]
    started = status[status != "missing"]
    share = float((started != "done").mean())
    if not share:
        return Interval(0.0, 0.0, 0.0, f"{len(started)} cells")
    return Interval(share, None, None, f"{share:.0%} of {len(started)} cells did not end")


def _share_of_step(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
    """All groups of one kind as a share of the step of their sequential run."""
    assert other is not None
    return row.seconds.over(other.seconds.value / row.columns["groups"])


def _column(name: str) -> Quantity:
    def value(row: Row, other: Row | None, rows: Sequence[Row]) -> Interval | None:
        return row.interval(name)

    return value


QUANTITIES: dict[str, Quantity] = {
    "speedup": _speedup,
    "slowdown": _slowdown,
    "ratio of speedups": _ratio_of_speedups,
    "test accuracy": _column("test_accuracy"),
    "mean_s": _column("seconds"),
    "difference of test accuracy": _difference("test_accuracy"),
    "accuracy lost": _accuracy_lost,
    "waiting": _waiting,
    "unfinished": _unfinished,
    "share of the step": _share_of_step,
}
BOUNDS: dict[str, Callable[[Row, Row | None], float | None]] = {
    "ranks": lambda row, _: float(row.columns["ranks"]),
    "balanced": lambda row, _: bound(
        row.columns["replicas"], row.columns["stages"], row.columns["microbatches"]
    ),
    "chunks": lambda row, _: (
        bound(1, row.columns["stages"], row.columns["microbatches"])
        / bound(1, row.columns["stages"], 1)
    ),
}

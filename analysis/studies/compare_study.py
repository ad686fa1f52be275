"""Compares a run with a published study: selects rows, pairs them, and judges their intervals.

The same rules are applied to the rows of the run and to the published rows, so that a published
quantity and a measured one mean the same. Only rows that are equal in all settings but those of the
pair are compared; a conclusion holds or does not by an interval over three runs or more alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import pandas as pd

from analysis.load.comparable import differences
from analysis.statistics.intervals import Interval, t_bounds
from analysis.statistics.sample import FEWEST_PAIRS
from analysis.studies.study import Claim
from analysis.studies.study_rows import Row, selected
from analysis.summary.baseline_and_speedup import same_value
from analysis.summary.frameworks import DEPENDS_ON_IMPLEMENTATION

Outcome = Literal["holds", "does not hold", "cannot be decided", "not measured"]
_WHO_COMPUTES = (
    *("layout", "microbatches", "engine", "schedule", "virtual_stages", "balance"),
    *("chunks", "rebuild", "activation_checkpointing", "bucket_mib"),
)
"""What rows may differ in that learn the same from the whole graph."""


@dataclass(frozen=True)
class Side:
    """A claim's quantity in one row, published or measured."""

    claim: Claim
    row: Row
    other: Row | None
    """The other row of the pair."""
    value: Interval

    @cached_property
    def setting(self) -> str:
        return self.claim.setting.format_map(self.row.columns)

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for a published and a measured side of the same comparison."""
        return self.row.columns["phase"], self.row.columns["model_name"], self.setting

    @property
    def bound(self) -> float | None:
        known = self.claim.bound
        return float(self.row.columns[known]) if isinstance(known, str) else known

    @property
    def judgement(self) -> tuple[Outcome, str]:
        """Whether a conclusion holds, by the interval; and why it does not or is undecided."""
        claim, low, high = self.claim, self.value.low, self.value.high
        rows = [self.row, *([self.other] if self.other else [])]
        runs = min(row.runs for row in rows)
        if low is None or high is None:
            return "cannot be decided", f", no interval, {self.value.basis}"
        if claim.of_devices and any(row.shares_processors for row in rows):
            return "cannot be decided", ", its ranks took turns on fewer processors"
        if runs < FEWEST_PAIRS:
            return "cannot be decided", f", {runs} runs are fewer than {FEWEST_PAIRS}"
        furthest = max(high - claim.nothing, claim.nothing - low)
        if claim.negligible is not None and furthest < claim.negligible:
            return "does not hold", f", the difference is less than {claim.negligible:g}"
        if not self.value.excludes(claim.nothing):
            return "cannot be decided", f", the interval contains {claim.nothing:g}"
        side = "more" if low > claim.nothing else "less"
        return "holds" if claim.expected in ("either", side) else "does not hold", ""


@dataclass(frozen=True)
class Finding:
    """One comparison; either side may be missing, but not both."""

    claim: Claim
    printed: Side | None
    ours: Side | None

    @property
    def side(self) -> Side:
        """Ours, or the printed one where the run lacks it."""
        found = self.ours or self.printed
        assert found is not None
        return found

    @property
    def verdict(self) -> str:
        """The verdict in words, with the reason where it is unknown."""
        if self.claim.text:
            outcome, why = self.ours.judgement if self.ours else ("not measured", "")
            return f"{self.claim.text}: {outcome}{why}"
        words = [_of_printed(self.printed) if self.printed else ""]
        if self.ours and self.ours.bound is not None:
            words.append(_of_bound(self.ours.value, self.ours.bound))
        return ". ".join(filter(None, words))


def _of_printed(printed: Side) -> str:
    known = {**printed.row.columns, "value": printed.value.value, "bound": printed.bound}
    frame = pd.DataFrame([known])
    verdicts = printed.claim.verdicts
    return next((text for query, text in verdicts if len(frame.query(query, engine="python"))), "")


def _of_bound(value: Interval, bound: float) -> str:
    if value.value <= bound:
        return "Ours is within the bound"
    if value.low is None:
        return f"Ours is above the bound; no interval: {value.basis}"
    return (
        f"Ours is above the bound by {'less' if value.low <= bound else 'more'} than its interval"
    )


def compare_rows(
    claims: Sequence[Claim], published: Sequence[Row], measured: Sequence[Row]
) -> Iterator[Finding]:
    """All comparisons, claim by claim; published ones that the run lacks come last."""
    for claim in claims:
        printed = {one.key: one for one in _sides(claim, published)}
        ours = [one for one in _sides(claim, measured) if claim.text or one.key in printed]
        yield from (Finding(claim, printed.get(one.key), one) for one in ours)
        matched = {one.key for one in ours}
        yield from (Finding(claim, one, None) for k, one in printed.items() if k not in matched)


def _sides(claim: Claim, rows: Sequence[Row]) -> Iterator[Side]:
    for row in selected(rows, claim.select):
        if claim.pair is None:
            other, value = None, row.interval(claim.quantity)
        else:
            other = _like(row, rows, claim.pair, claim.free)
            value = OF_PAIRS[claim.quantity](row, other) if other else None
        if value is not None:
            yield Side(claim, row, other, value)


def _like(
    row: Row, rows: Sequence[Row], changes: Mapping[str, Any], free: Sequence[str]
) -> Row | None:
    """The row with these settings that equals `row` in all others but the free ones.

    It was measured in the same environment, but for what the implementation decides. Of several the
    one that differs in the fewest free settings is taken.
    """
    expected = {**row.settings, **changes}
    candidates = []
    for other in rows:
        differing = {k for k, v in expected.items() if not same_value(other.settings.get(k), v)}
        environments = differences(row.environment, other.environment).keys()
        same = differing <= set(free) and environments <= DEPENDS_ON_IMPLEMENTATION
        if other is not row and same:
            candidates.append((len(differing), other))
    return min(candidates, key=lambda one: one[0])[1] if candidates else None


def with_accuracy_lost(rows: Sequence[Row]) -> list[Row]:
    """The rows with the accuracy that chunks lost against the whole graph, on validation nodes."""
    whole_graphs = [row for row in rows if row.columns["chunk_count"] == 1]
    found = []
    for row in rows:
        in_chunks = row.columns["chunk_count"] > 1
        whole = _like(row, whole_graphs, {}, _WHO_COMPUTES) if in_chunks else None
        lost = _difference_of_seeds(whole, row, "val_accuracy") if whole else None
        found.append(row.with_intervals({"accuracy_lost": lost}) if lost else row)
    return found


def _difference_of_seeds(row: Row, other: Row, metric: str) -> Interval | None:
    """The row's less the other's, from the seeds that both have, or of published rows; None
    without any."""
    if row.configuration is None:
        mine, theirs = row.interval(metric), other.interval(metric)
        return Interval(mine.value - theirs.value, None, None) if mine and theirs else None
    both = pd.concat([row.of_seeds(metric), other.of_seeds(metric)], axis=1).dropna()
    less = (both.iloc[:, 0] - both.iloc[:, 1]).to_numpy()
    if not less.size:
        return None
    basis = f"{less.size} seed{'s' if less.size > 1 else ''}"
    if less.size < FEWEST_PAIRS:
        return Interval(float(less.mean()), None, None, f"of {basis} only")
    low, high = t_bounds(less)
    return Interval(float(less.mean()), float(low), float(high), basis)


def _speedup(row: Row, other: Row) -> Interval | None:
    """Samples a second of the row over those of the other."""
    if row.configuration is None or other.configuration is None:
        work = row.columns.get("work", 1.0) / other.columns.get("work", 1.0)
        return Interval(work * other.columns["seconds"] / row.columns["seconds"], None, None)
    return row.configuration.speedup_over(other.configuration)


def _share_of_step(row: Row, other: Row) -> Interval | None:
    """All groups of one kind, of the step of their sequential run."""
    part, step = row.interval("seconds"), other.interval("seconds")
    return part.over(step.value / row.columns["groups"]) if part and step else None


OF_PAIRS: dict[str, Callable[[Row, Row], Interval | None]] = {
    "speedup": _speedup,
    "difference of test accuracy": partial(_difference_of_seeds, metric="test_accuracy"),
    "share of the step": _share_of_step,
}
"""Each is a function of a row and the row that it is paired with; None where it was not measured.
"""

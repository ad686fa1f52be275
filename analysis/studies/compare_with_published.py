"""Compares a run with a published study: selects rows, pairs them, and judges their intervals.

The same rules are applied to the rows of the run and to the published rows, so that a published
quantity and a measured one mean the same. Only rows that are equal in all settings but those of the
pair are compared; a conclusion holds or does not by an interval over three runs or more alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from analysis.load.comparable import same_but_for_implementation
from analysis.statistics.intervals import Interval, t_bounds
from analysis.statistics.sample import FEWEST_PAIRS
from analysis.studies.study import Claim
from analysis.studies.study_rows import Row, selected
from analysis.summary.configurations import closest

_WHO_COMPUTES = (
    *("layout", "microbatches", "engine", "schedule", "virtual_stages", "balance"),
    *("chunks", "rebuild", "activation_checkpointing", "bucket_mib"),
)
"""Settings in which two rows may differ although both train on the whole graph."""


@dataclass(frozen=True)
class Side:
    """A claim's quantity in one row, published or measured."""

    row: Row
    other: Row | None
    """The other row of the pair."""
    value: Interval


def compare_claim(
    claim: Claim, published: Sequence[Row], measured: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Rows of the corrected study, with the `outcome` of each that was measured.

    A number is compared where it was published, and a conclusion wherever it was measured;
    published comparisons that the run lacks come last.
    """
    printed = dict(_sides(claim, published))
    ours = [(key, side) for key, side in _sides(claim, measured) if claim.text or key in printed]
    for key, side in ours:
        yield _compare(claim, side, printed.get(key), side)
    for key, side in printed.items():
        if key not in dict(ours):
            yield _compare(claim, side, side, None)


def _sides(claim: Claim, rows: Sequence[Row]) -> Iterator[tuple[tuple[str, str, str], Side]]:
    """Yields each side with a key, which is equal for the published and the measured side."""
    for row in selected(rows, claim.select):
        if claim.pair is None:
            other, value = None, row.interval(claim.quantity)
        else:
            other = _like(row, rows, claim.pair, claim.free)
            value = OF_PAIRS[claim.quantity](row, other) if other else None
        if value is not None:
            setting = claim.setting.format_map(row.columns)
            key = row.columns["phase"], row.columns["model_name"], setting
            yield key, Side(row, other, value)


def _compare(claim: Claim, side: Side, printed: Side | None, ours: Side | None) -> dict[str, Any]:
    """One row; `side` is ours, or the printed one where the run lacks it."""
    columns = side.row.columns
    bound = float(columns[claim.bound]) if isinstance(claim.bound, str) else claim.bound
    outcome, why = _outcome(claim, ours) if ours else ("not measured", "")
    verdict = f"{claim.text}: {outcome}{why}"
    if not claim.text:
        words = [_of_printed(claim, printed, bound) if printed else ""]
        words += [_of_bound(ours.value, bound)] if ours and bound is not None else []
        verdict = ". ".join(filter(None, words))
    return {
        "table": claim.table.format_map((printed or side).row.columns),
        "model": columns["model_name"],
        "setting": claim.setting.format_map(columns),
        "phase": columns["phase"],
        "quantity": claim.name or claim.quantity,
        "published": printed.value.value if printed else None,
        **(ours.value.columns("ours") if ours else {}),
        "bound": bound,
        "run": columns.get("run", ""),
        "verdict": verdict,
        "outcome": outcome,
    }


def _outcome(claim: Claim, side: Side) -> tuple[str, str]:
    """Whether a conclusion holds, by the interval; and why it does not or is undecided."""
    low, high = side.value.low, side.value.high
    rows = [side.row, *([side.other] if side.other else [])]
    runs = min(row.runs for row in rows)
    if low is None or high is None:
        return "cannot be decided", f", no interval, {side.value.basis}"
    if claim.of_devices and any(row.shares_processors for row in rows):
        return "cannot be decided", ", its ranks took turns on fewer processors"
    if runs < FEWEST_PAIRS:
        return "cannot be decided", f", {runs} runs are fewer than {FEWEST_PAIRS}"
    furthest = max(high - claim.nothing, claim.nothing - low)
    if claim.negligible is not None and furthest < claim.negligible:
        return "does not hold", f", the difference is less than {claim.negligible:g}"
    if not side.value.excludes(claim.nothing):
        return "cannot be decided", f", the interval contains {claim.nothing:g}"
    found = "more" if low > claim.nothing else "less"
    return "holds" if claim.expected in ("either", found) else "does not hold", ""


def _of_printed(claim: Claim, printed: Side, bound: float | None) -> str:
    """The text of the first verdict whose query holds."""
    known = pd.DataFrame([{**printed.row.columns, "value": printed.value.value, "bound": bound}])
    texts = (text for query, text in claim.verdicts if len(known.query(query, engine="python")))
    return next(texts, "")


def _of_bound(value: Interval, bound: float) -> str:
    if value.value <= bound:
        return "Ours is within the bound"
    if value.low is None:
        return f"Ours is above the bound; no interval: {value.basis}"
    amount = "less" if value.low <= bound else "more"
    return f"Ours is above the bound by {amount} than its interval"


def _like(
    row: Row, rows: Sequence[Row], changes: Mapping[str, Any], free: Sequence[str]
) -> Row | None:
    """The row with these settings that equals `row` in all others but the free ones.

    It was measured in the same environment, but for what the implementation decides. Of several the
    one that differs in the fewest free settings is taken.
    """
    others = (
        other
        for other in rows
        if other is not row and same_but_for_implementation(row.environment, other.environment)
    )
    return next(iter(closest(others, {**row.settings, **changes}, free)), None)


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
    """The metric of the row minus that of the other: over the seeds that both have, or as it is
    published. None if there is neither."""
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

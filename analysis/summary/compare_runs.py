"""Compares two runs cell by cell: step times, layer groups and losses; B may be slower than A.

Many ratios are compared at once, so each has an interval of a confidence at which all of them hold
together (Bonferroni's inequality; Dunn 1961, Journal of the American Statistical Association
56:52): of equal runs at most one in forty has a ratio that is called slower. With eight pairs or
more, intervals are by signed ranks, so that a few disturbed repeats do not hide a difference that
all others show.

A machine that is slow for a second slows all layers of that second. The seconds of one group of
layers over those of the other groups of the same step are free of it, so they show a small change
of one layer where seconds alone need many more repeats. They cannot distinguish one layer that
became slower from others that became faster; the seconds of both decide that.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import ArrayLike

from analysis.load.equivalent_cells import divergence, valid_trajectories
from analysis.load.run_data import RunData, load_run
from analysis.statistics.intervals import CONFIDENCE, Interval, repeats_in_words
from analysis.statistics.sample import Sample, paired
from analysis.summary.baseline_and_speedup import exceeds
from analysis.summary.configurations import Configuration, make_configurations, why_not_counted
from analysis.summary.settings_in_words import is_missing, settings_label
from gnnhpc.core.errors import InputError

SOURCES = "model_digest"
"""The digest of a custom model's sources: two versions of one model are compared."""
Settings = frozenset[tuple[str, object]]


@dataclass(frozen=True)
class Match:
    """One configuration in one phase, as both runs have it."""

    name: str
    """The configuration's, such as `gat synthetic-citation pp2 m2`."""
    a: Configuration
    b: Configuration

    @property
    def phase(self) -> str:
        return self.a.phase

    @property
    def sides(self) -> tuple[Configuration, Configuration]:
        return self.a, self.b

    @cached_property
    def alternated(self) -> bool:
        """Whether the runs took turns: A's and B's first repeats, then the second ones.

        Only then are equal repeats a pair; else their common number means nothing.
        """
        pairs = paired(self.a.sample.repeats, self.b.sample.repeats)
        started = [list(one.used["started_at"]) for one in self.sides]
        turns = sorted(sorted((started[0][i], started[1][j])) for i, j in pairs)
        ordered = [time for turn in turns for time in turn]
        return bool(turns) and all(ordered) and ordered == sorted(set(ordered))

    def samples(self, a: Sequence[ArrayLike], b: Sequence[ArrayLike]) -> tuple[Sample, Sample]:
        """Seconds of each run of both sides; repeats are pairs where the runs took turns."""
        repeats = [one.sample.repeats if self.alternated else () for one in self.sides]
        return Sample(a, repeats[0]), Sample(b, repeats[1])


@dataclass(frozen=True)
class Comparison:
    """What comparing run B with run A found."""

    a: RunData
    b: RunData
    tolerance: float
    matches: list[Match]
    """The configurations and phases that both runs measured."""
    only_in_one: list[str]
    """What only one of the runs has or counts, a line each."""
    steps: pd.DataFrame
    """A row a match: seconds in A and in B, their ratio with its bounds where runs are enough, and
    the verdict. `slower` is the ratio that shows B slower than is tolerated, in words; or empty."""
    groups: pd.DataFrame
    """The same of each match and group of layers, with the ratio of the group's seconds over those
    of the other groups of the same step."""
    losses: dict[str, str]
    """Cell id that both runs trained -> why it learns something else in B; empty for the same."""

    @property
    def slower(self) -> bool:
        return any((frame["slower"] != "").any() for frame in (self.steps, self.groups))


def compare_runs(root_a: Path, root_b: Path, tolerance: float, of: str) -> Comparison:
    """Load and compare two run folders, by the `mean` or `median` of each run's steps.

    Raises InputError for a path that is no run folder, one run given twice, a negative tolerance,
    another average, and for runs without a common measured configuration.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise InputError("--tolerance", None, f"{tolerance:g}", "a share such as 0.02, or 0")
    if of not in ("mean", "median"):
        raise InputError("--of", None, repr(of), "mean or median")
    if root_a.resolve() == root_b.resolve():
        raise InputError(root_b, None, "the same folder twice", "different runs")
    a, b = load_run(root_a), load_run(root_b)
    matches, only_in_one = _match(a, b)
    rows = []
    for match in matches:
        seconds = match.samples(match.a.step_times, match.b.step_times)
        ratio = _ratio(seconds, of, len(matches))
        rows.append(_row(match, "step", seconds, of, tolerance, ratio))
    steps = pd.DataFrame(rows)
    trained = [one for one in matches if one.phase == "train"]
    of_groups = list(_rows_of_groups(trained, a, b, of, tolerance))
    groups = pd.DataFrame(of_groups) if of_groups else steps.head(0)
    before, after = (valid_trajectories(run.ranks, run.cells) for run in (a, b))
    causes = {cell: divergence(before[cell], after[cell]) for cell in before if cell in after}
    return Comparison(a, b, tolerance, matches, only_in_one, steps, groups, causes)


def _match(a: RunData, b: RunData) -> tuple[list[Match], list[str]]:
    """What both runs measured, and what only one of them has or counts, a line each.

    Configurations match by all settings; the sources of a custom model may differ. Raises
    InputError for runs that measured nothing in common.
    """
    ours, theirs = (
        {(_settings(row), row.phase): row for row in make_configurations(r)} for r in (a, b)
    )
    names = _names([*ours.values(), *theirs.values()])
    matches = [
        Match(names[settings], one, theirs[settings, phase])
        for (settings, phase), one in ours.items()
        if one.step_times and (settings, phase) in theirs and theirs[settings, phase].step_times
    ]
    if not matches:
        found = f"no configuration that it and {a.name} both measured"
        raise InputError(b.name, "cells", found, "two runs of one sweep")
    lines = []
    for side, mine, other in (("A", ours, theirs), ("B", theirs, ours)):
        only = dict.fromkeys(names[key[0]] for key in mine if key not in other)
        lines += [f"only in {side}: {name}" for name in only]
    for side, run in (("A", a), ("B", b)):
        for cell in run.cells[~run.cells["counts"].astype(bool)].to_dict("records"):
            lines.append(f"not counted in {side}: {cell['cell']}: {why_not_counted(cell)}")
    return matches, lines


def _settings(one: Configuration) -> Settings:
    """The settings but a model's sources; frames make whole numbers floats."""
    return frozenset(
        (name, float(value) if isinstance(value, numbers.Real) else str(value))
        for name, value in one.settings.items()
        if name != SOURCES and not is_missing(value)
    )


def _names(rows: Sequence[Configuration]) -> dict[Settings, str]:
    """Model, data, layout, micro-batches, and the other settings in which those of a name vary."""
    by_name: dict[str, list[Settings]] = {}
    for one in rows:
        name = " ".join(str(one.settings[key]) for key in ("model", "data", "layout"))
        by_name.setdefault(f"{name} m{one.microbatches}", []).append(_settings(one))
    names = {}
    for name, same in by_name.items():
        common = frozenset.intersection(*same)
        for each in same:
            names[each] = f"{name} {settings_label(dict(sorted(each - common)))}".rstrip()
    return names


def _ratio(samples: tuple[Sample, Sample], of: str, among: int) -> Interval:
    """B over A, with an interval that holds together with those of all `among` ratios."""
    a, b = samples
    confidence = 1.0 - (1.0 - CONFIDENCE) / among
    return b.over(a, of=of, confidence=confidence, by_ranks=True)


def _row(
    match: Match,
    what: str,
    seconds: tuple[Sample, Sample],
    of: str,
    tolerance: float,
    ratio: Interval,
    relative: Interval | None = None,
    others: Interval | None = None,
) -> dict[str, Any]:
    """A row of `Comparison.steps` or `groups`; seconds are averages over runs."""
    a_s, b_s = (getattr(one, of).value for one in seconds)
    verdict, slower = _verdict(tolerance, ratio, relative, others)
    return {
        "cell": match.name,
        "phase": match.phase,
        "what": what,
        "runs": ", ".join(str(len(one.runs)) for one in seconds),
        "a_s": a_s,
        "b_s": b_s,
        "b_over_a": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "from": ratio.basis if ratio.low is not None else "",
        "verdict": verdict,
        "slower": slower,
        **(relative.columns("relative") if relative else {}),
    }


def _rows_of_groups(
    matches: Sequence[Match], a: RunData, b: RunData, of: str, tolerance: float
) -> Iterator[dict[str, Any]]:
    """A row for each group of layers that every cell of both configurations recorded."""
    recorded = [_group_seconds(run) for run in (a, b)]
    found = []
    for match in matches:
        sides = [_of_runs(*both) for both in zip(match.sides, recorded, strict=True)]
        common = sorted(set.intersection(*(set(run.columns) for side in sides for run in side)))
        found += [(match, [[run[common] for run in side] for side in sides], g) for g in common]
    # The intervals of seconds and of relative seconds hold together.
    among = 2 * len(found)
    for match, sides, group in found:
        seconds = match.samples(*([run[group] for run in side] for side in sides))
        ratios = [_ratio(seconds, of, among)]
        if len(sides[0][0].columns) > 1:
            rest = [[run.sum(axis=1) - run[group] for run in side] for side in sides]
            shares = (
                [run[group] / other for run, other in zip(*both, strict=True)]
                for both in zip(sides, rest, strict=True)
            )
            # By medians, as one slow moment falls upon one group.
            ratios.append(_ratio(match.samples(*shares), "median", among))
            ratios.append(_ratio(match.samples(*rest), of, among))
        yield _row(match, group, seconds, of, tolerance, *ratios)


def _verdict(
    tolerance: float, ratio: Interval, relative: Interval | None, others: Interval | None
) -> tuple[str, str]:
    """The verdict, and the ratio that shows B slower than is tolerated, both in words.

    With one run a side, the verdict is why there is none. Relative seconds count only where the
    group's seconds are larger too, and those of the `others` are not shown to be smaller.
    """
    if exceeds(ratio, 1.0 + tolerance):
        return "slower", _span(ratio)
    faster_others = others is not None and others.high is not None and others.high < 1.0
    if relative and ratio.value > 1.0 and exceeds(relative, 1.0 + tolerance) and not faster_others:
        words = " relative to the other layers of the step"
        return f"slower{words}", _span(relative) + words
    if ratio.high is None:
        return ratio.basis, ""
    if not ratio.excludes(1.0):
        return f"no difference shown{repeats_in_words(ratio)}", ""
    faster = ratio.high < 1.0
    return "faster" if faster else "slower, not shown to be beyond the tolerance", ""


def _span(ratio: Interval) -> str:
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _group_seconds(run: RunData) -> pd.DataFrame:
    """A row a cell and profiled training step: seconds of each group of layers, over all ranks."""
    times = run.layer_times[(run.layer_times["phase"] == "train").to_numpy()]
    keys = [times["cell"].astype(str), times["step"], times["group"].astype(str)]
    return (times["forward_s"] + times["backward_s"]).groupby(keys).sum().unstack("group")


def _of_runs(one: Configuration, seconds: pd.DataFrame) -> list[pd.DataFrame]:
    """Those of each cell that counts, with the groups that all of its profiled steps have."""
    cells = seconds.index.get_level_values("cell")
    runs = (seconds[cells == str(cell)] for cell in one.used["cell"])
    # The first drop leaves no column of a cell without profiled steps.
    return [run.dropna(axis=1, how="all").dropna(axis=1) for run in runs]

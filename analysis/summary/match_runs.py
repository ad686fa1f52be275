"""Which configurations two runs have in common, and what only one of them has or counts."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
from numpy.typing import ArrayLike

from analysis.load.run_data import RunData
from analysis.statistics.sample import Sample, paired
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.settings_in_words import value_text
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
        if not self.alternated:
            return Sample(a), Sample(b)
        return Sample(a, self.a.sample.repeats), Sample(b, self.b.sample.repeats)


def match_runs(a: RunData, b: RunData) -> tuple[list[Match], list[str]]:
    """What both runs measured, and what only one of them has or counts, a line each.

    Configurations match by all settings; the sources of a custom model may differ. Raises
    InputError for runs that measured nothing in common.
    """
    ours, theirs = make_configurations(a), make_configurations(b)
    names = _names([*ours, *theirs])
    others = {(_settings(one), one.phase): one for one in theirs}
    matches = [
        Match(names[_settings(one)], one, other)
        for one in ours
        if (other := others.get((_settings(one), one.phase))) is not None
        and one.step_times
        and other.step_times
    ]
    if not matches:
        found = f"no configuration that it and {a.name} both measured"
        raise InputError(b.name, "cells", found, "two runs of one sweep")
    lines = [
        f"only in {side}: {names[key]}"
        for side, mine, other in (("A", ours, theirs), ("B", theirs, ours))
        for key in dict.fromkeys(map(_settings, mine))
        if key not in set(map(_settings, other))
    ]
    return matches, [*lines, *_not_counted("A", a), *_not_counted("B", b)]


def _settings(one: Configuration) -> Settings:
    """The settings but a model's sources; frames make whole numbers floats."""
    return frozenset(
        (name, float(value) if isinstance(value, numbers.Real) else str(value))
        for name, value in one.settings.items()
        if name != SOURCES and not pd.isna(value)
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
        for key in same:
            varying = (f"{word} {value_text(value)}" for word, value in sorted(key - common))
            names[key] = " ".join([name, *varying])
    return names


def _not_counted(side: str, run: RunData) -> Iterator[str]:
    """Cells that failed, are missing, invalid, or not comparable with most of their run."""
    for cell in run.cells[~run.cells["counts"].astype(bool)].to_dict("records"):
        why = cell["not_comparable"] or cell["flags"].replace(";", ", ") or cell["status"]
        yield f"not counted in {side}: {cell['cell']}: {why}"

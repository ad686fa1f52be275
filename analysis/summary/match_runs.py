"""Which configurations two runs have in common, and what only one of them has."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.load.run_data import RunData
from analysis.statistics.pairs import Repeat, paired
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.settings_in_words import value_text
from gnnhpc.core.errors import InputError

_SOURCES = "model_digest"
"""The digest of a custom model's sources: two versions of one model are compared."""
Key = frozenset[tuple[str, object]]


@dataclass(frozen=True)
class Match:
    """One configuration in one phase, as both runs have it."""

    name: str
    """The pair's name, such as `gat synthetic-citation pp2 m2`."""
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

    def repeats(self, one: Configuration) -> Sequence[Repeat]:
        """Which repeat each run of `one` is, where that makes a pair; else nothing."""
        return one.sample.repeats if self.alternated else ()


def match_runs(a: RunData, b: RunData) -> tuple[list[Match], list[str]]:
    """What both runs measured, and what only one of them has or counts, a line each.

    Configurations match by all settings; the sources of a custom model may differ. Raises
    InputError for runs that measured nothing in common.
    """
    ours, theirs = make_configurations(a), make_configurations(b)
    names = _names([*ours, *theirs])
    matches = [Match(names[id(mine)], mine, other) for mine, other in _pairs(ours, theirs)]
    measured = [match for match in matches if match.a.step_times and match.b.step_times]
    if not measured:
        words = f"no configuration that it and {a.root} both measured; "
        words += _nearest_difference(ours, theirs)
        raise InputError(b.root, "cells", words, "two runs of one sweep")
    matched = {id(one) for match in matches for one in match.sides}
    lines = [
        f"only in {side}: {names[id(one)]} ({len(one.cells)} cells)"
        for side, rows in (("A", ours), ("B", theirs))
        for one in rows
        if one.phase == "train" and id(one) not in matched
    ]
    for match in matches:
        if match.phase == "train":
            lines += _repeats_in_one(match)
    return measured, [*lines, *_not_counted("A", a), *_not_counted("B", b)]


def _nearest_difference(ours: Sequence[Configuration], theirs: Sequence[Configuration]) -> str:
    """The settings in which the two most similar configurations of the runs differ, in words."""
    pairs = [(_key(mine) ^ _key(other), mine, other) for mine in ours for other in theirs]
    differing, mine, other = min(pairs, key=lambda pair: len(pair[0]))
    if not differing:
        return "those that they have in common have no valid cell in one of them"
    words = []
    for key in sorted({name for name, _ in differing}):
        values = (value_text(one.settings.get(key)) for one in (mine, other))
        words.append("{} ({} in A, {} in B)".format(key, *values))
    return f"the most similar ones differ in {', '.join(words)}"


def _pairs(
    ours: Sequence[Configuration], theirs: Sequence[Configuration]
) -> Iterator[tuple[Configuration, Configuration]]:
    """Equal in all settings; of several versions of a custom model first those of equal sources."""
    left = list(theirs)
    partner: dict[int, Configuration] = {}
    for with_sources in (True, False):
        by_key = {(_key(one, with_sources), one.phase): one for one in left}
        for one in ours:
            other = by_key.pop((_key(one, with_sources), one.phase), None)
            if other is not None and id(one) not in partner:
                partner[id(one)] = other
        taken = {id(other) for other in partner.values()}
        left = [one for one in left if id(one) not in taken]
    return ((one, partner[id(one)]) for one in ours if id(one) in partner)


def _key(one: Configuration, with_sources: bool = False) -> Key:
    """The settings; a frame makes whole numbers floats where another row has none."""
    return frozenset(
        (name, float(value) if isinstance(value, numbers.Real) else str(value))
        for name, value in one.settings.items()
        if (with_sources or name != _SOURCES) and not pd.isna(value)
    )


def _names(rows: Sequence[Configuration]) -> dict[int, str]:
    """id(row) -> its name: model, data, layout, micro-batches and the other settings that vary."""
    by_name: dict[str, list[Configuration]] = {}
    for one in rows:
        name = " ".join(str(one.settings[key]) for key in ("model", "data", "layout"))
        by_name.setdefault(f"{name} m{one.microbatches}", []).append(one)
    names = {}
    for name, same in by_name.items():
        keys = [_key(one) for one in same]
        common = frozenset.intersection(*keys)
        for one, key in zip(same, keys, strict=True):
            varying = (f"{word} {value_text(value)}" for word, value in sorted(key - common))
            names[id(one)] = " ".join([name, *varying])
    return names


def _repeats_in_one(match: Match) -> Iterator[str]:
    """Seeds and repeats of a common configuration that one of the runs lacks."""
    a, b = (set(zip(one.cells["seed"], one.cells["repeat"], strict=True)) for one in match.sides)
    for side, missing in (("A", a - b), ("B", b - a)):
        if missing:
            which = ", ".join(f"seed {seed} repeat {repeat}" for seed, repeat in sorted(missing))
            yield f"only in {side}: {match.name}, {which}"


def _not_counted(side: str, run: RunData) -> Iterator[str]:
    """Cells that failed, are missing, invalid, or not comparable with most of their run."""
    for cell in run.cells[~run.cells["counts"].astype(bool)].to_dict("records"):
        status = "not valid" if cell["status"] == "done" and not cell["valid"] else cell["status"]
        words = "not comparable with most of its run" if cell["not_comparable"] else status
        why = cell["not_comparable"] or cell["flags"].replace(";", ", ")
        yield f"not counted in {side}: {cell['cell']}: {words}{f' ({why})' if why else ''}"

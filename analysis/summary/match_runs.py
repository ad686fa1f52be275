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

_SOURCES = "model_digest"
"""The digest of a custom model's sources: two versions of one model are compared."""
_NAMED = ("model", "data", "layout", "microbatches")
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

    @cached_property
    def alternated(self) -> bool:
        """Whether the runs took turns: A's and B's first repeats, then the second ones.

        Only then are equal repeats a pair; else their common number means nothing.
        """
        pairs = paired(self.a.sample.repeats, self.b.sample.repeats)
        started = [list(one.used["started_at"]) for one in (self.a, self.b)]
        turns = sorted(sorted((started[0][i], started[1][j])) for i, j in pairs)
        ordered = [time for turn in turns for time in turn]
        return bool(turns) and all(ordered) and ordered == sorted(set(ordered))

    def repeats(self, one: Configuration) -> Sequence[Repeat]:
        """Which repeat each run of `one` is, where that makes a pair; else nothing."""
        return one.sample.repeats if self.alternated else ()


def match_runs(a: RunData, b: RunData) -> tuple[list[Match], list[str]]:
    """What both runs have, and what only one of them has or counts, a line each.

    Configurations match by all settings; the sources of a custom model may differ.
    """
    ours, theirs = make_configurations(a), make_configurations(b)
    names = _names([*ours, *theirs])
    found = _pairs(ours, theirs)
    matched = {id(one) for pair in found for one in pair}
    lines = []
    for side, rows in (("A", ours), ("B", theirs)):
        lines += [
            f"only in {side}: {names[id(one)]} ({len(one.cells)} cells)"
            for one in rows
            if one.phase == "train" and id(one) not in matched
        ]
    for mine, other in found:
        if mine.phase == "train":
            lines += _repeats_in_one(names[id(mine)], mine, other)
    lines += [*_not_counted("A", a), *_not_counted("B", b)]
    return [Match(names[id(mine)], mine, other) for mine, other in found], lines


def nearest_difference(a: RunData, b: RunData) -> str:
    """The settings in which the two most similar configurations of the runs differ, in words."""
    ours, theirs = make_configurations(a), make_configurations(b)
    pairs = [(mine, other) for mine in ours for other in theirs if mine.phase == other.phase]
    if not pairs:
        return "one of them has no cells"
    keys: dict[int, Key] = {id(one): _key(one, _SOURCES) for one in (*ours, *theirs)}
    mine, other = min(pairs, key=lambda pair: len(keys[id(pair[0])] ^ keys[id(pair[1])]))
    differing = sorted({name for name, _ in keys[id(mine)] ^ keys[id(other)]})
    if not differing:
        return "those that they have in common have no valid cell in one of them"
    words = [
        f"{key} ({_short(mine.settings.get(key, 'none'))} in A, "
        f"{_short(other.settings.get(key, 'none'))} in B)"
        for key in differing
    ]
    return f"the most similar ones differ in {', '.join(words)}"


def _pairs(
    ours: Sequence[Configuration], theirs: Sequence[Configuration]
) -> list[tuple[Configuration, Configuration]]:
    """Equal in all settings, or else in all but the sources of a custom model."""
    exact = {(_key(one), one.phase): one for one in theirs}
    taken = {id(exact[key]) for one in ours if (key := (_key(one), one.phase)) in exact}
    unpaired = {(_key(one, _SOURCES), one.phase): one for one in theirs if id(one) not in taken}
    found = []
    for one in ours:
        other = exact.get((_key(one), one.phase))
        if other is None:
            other = unpaired.pop((_key(one, _SOURCES), one.phase), None)
        if other is not None:
            found.append((one, other))
    return found


def _key(one: Configuration, leave_out: str = "") -> Key:
    """The settings; a frame makes whole numbers floats where another row has none."""
    return frozenset(
        (name, float(value) if isinstance(value, numbers.Real) else str(value))
        for name, value in one.settings.items()
        if name != leave_out and not pd.isna(value)
    )


def _names(rows: Sequence[Configuration]) -> dict[int, str]:
    """id(row) -> its name: model, data, layout, micro-batches and the other settings that vary."""
    by_name: dict[str, list[Configuration]] = {}
    for one in rows:
        model, data, layout, microbatches = (one.settings[name] for name in _NAMED)
        by_name.setdefault(f"{model} {data} {layout} m{microbatches}", []).append(one)
    names = {}
    for name, same in by_name.items():
        keys = [_key(one) for one in same]
        common = frozenset.intersection(*keys)
        for one, key in zip(same, keys, strict=True):
            varying = sorted((word, value) for word, value in key - common if word != _SOURCES)
            names[id(one)] = " ".join([name, *(f"{word} {_short(v)}" for word, v in varying)])
    return names


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _repeats_in_one(name: str, mine: Configuration, other: Configuration) -> Iterator[str]:
    """Seeds and repeats of a common configuration that one of the runs lacks."""
    have = [set(zip(one.cells["seed"], one.cells["repeat"], strict=True)) for one in (mine, other)]
    for side, missing in (("A", have[0] - have[1]), ("B", have[1] - have[0])):
        if missing:
            which = ", ".join(f"seed {seed} repeat {repeat}" for seed, repeat in sorted(missing))
            yield f"only in {side}: {name}, {which}"


def _not_counted(side: str, run: RunData) -> Iterator[str]:
    """Cells that failed, are missing, invalid, or not comparable with most of their run."""
    for cell in run.cells[~run.cells["counts"].astype(bool)].to_dict("records"):
        status = "not valid" if cell["status"] == "done" and not cell["valid"] else cell["status"]
        words = "not comparable with most of its run" if cell["not_comparable"] else status
        why = cell["not_comparable"] or cell["flags"].replace(";", ", ")
        yield f"not counted in {side}: {cell['cell']}: {words}{f' ({why})' if why else ''}"

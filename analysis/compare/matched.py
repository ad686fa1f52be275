"""Which configurations two runs have in common, and what only one of them has."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.loading.run import Run
from analysis.stats.pairs import Repeat, paired
from analysis.summary.configurations import Configuration, make_configurations

_SOURCES = "model_digest"
"""Setting that is the sources of a user's own model: two versions of one are compared."""
_NAMED = ("model", "data", "layout", "microbatches")
Key = frozenset[tuple[str, object]]


@dataclass(frozen=True)
class Match:
    """One configuration in one phase, as both runs have it."""

    name: str
    """Such as `gat synthetic-citation pp2 m2`."""
    a: Configuration
    b: Configuration

    @property
    def phase(self) -> str:
        return self.a.phase

    @cached_property
    def in_turn(self) -> bool:
        """Whether the repeats of both were measured in turn: A's and B's first, then the second.

        Only then is a repeat a pair; of runs that were measured one after the other it would be an
        accident.
        """
        pairs = paired(self.a.sample.repeats, self.b.sample.repeats)
        started = [list(one.used["started_at"]) for one in (self.a, self.b)]
        turns = sorted(sorted((started[0][i], started[1][j])) for i, j in pairs)
        ordered = [time for turn in turns for time in turn]
        return bool(turns) and all(ordered) and ordered == sorted(set(ordered))

    def repeats(self, one: Configuration) -> Sequence[Repeat]:
        """Which repeat each run of `one` is, where that makes a pair; else nothing."""
        return one.sample.repeats if self.in_turn else ()


@dataclass(frozen=True)
class Matches:
    """What two runs have in common, and what only one has or counts, in a line each."""

    pairs: list[Match]
    alone: list[str]


def match_runs(a: Run, b: Run) -> Matches:
    """Match configurations by all settings; of a user's own model the sources may differ."""
    ours, theirs = make_configurations(a), make_configurations(b)
    names = _names([*ours, *theirs])
    found = _pairs(ours, theirs)
    matched = {id(one) for pair in found for one in pair}
    alone = []
    for side, rows in (("A", ours), ("B", theirs)):
        alone += [
            f"only in {side}: {names[id(one)]} ({_cells(len(one.cells))})"
            for one in rows
            if one.phase == "train" and id(one) not in matched
        ]
    for mine, other in found:
        if mine.phase == "train":
            alone += _repeats_alone(names[id(mine)], mine, other)
    alone += [*_not_counted("A", a), *_not_counted("B", b)]
    return Matches([Match(names[id(mine)], mine, other) for mine, other in found], alone)


def _pairs(
    ours: Sequence[Configuration], theirs: Sequence[Configuration]
) -> list[tuple[Configuration, Configuration]]:
    """Equal in all settings, or else in all but the sources of the user's own model."""
    exact = {(_key(one), one.phase): one for one in theirs}
    taken = {id(exact[key]) for one in ours if (key := (_key(one), one.phase)) in exact}
    loose = {(_key(one, _SOURCES), one.phase): one for one in theirs if id(one) not in taken}
    found = []
    for one in ours:
        other = exact.get((_key(one), one.phase))
        if other is None:
            other = loose.pop((_key(one, _SOURCES), one.phase), None)
        if other is not None:
            found.append((one, other))
    return found


def _key(one: Configuration, leave_out: str = "") -> Key:
    """Its settings; a frame makes whole numbers fractions where another row has none."""
    return frozenset(
        (name, float(value) if isinstance(value, numbers.Real) else str(value))
        for name, value in one.settings.items()
        if name != leave_out and not pd.isna(value)
    )


def _names(rows: Sequence[Configuration]) -> dict[int, str]:
    """A name of each by its identity: model, data, layout, micro-batches and what else varies."""
    by_name: dict[str, list[Configuration]] = {}
    for one in rows:
        model, data, layout, microbatches = (one.settings[name] for name in _NAMED)
        by_name.setdefault(f"{model} {data} {layout} m{microbatches}", []).append(one)
    names = {}
    for name, same in by_name.items():
        keys = [_key(one) for one in same]
        common = frozenset.intersection(*keys)
        for one, key in zip(same, keys, strict=True):
            own = sorted((word, value) for word, value in key - common if word != _SOURCES)
            names[id(one)] = " ".join([name, *(f"{word} {_short(v)}" for word, v in own)])
    return names


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _repeats_alone(name: str, mine: Configuration, other: Configuration) -> Iterator[str]:
    """Seeds and repeats of a common configuration that one of the runs lacks."""
    have = [set(zip(one.cells["seed"], one.cells["repeat"], strict=True)) for one in (mine, other)]
    for side, missing in (("A", have[0] - have[1]), ("B", have[1] - have[0])):
        if missing:
            which = ", ".join(f"seed {seed} repeat {repeat}" for seed, repeat in sorted(missing))
            yield f"only in {side}: {name}, {which}"


def _not_counted(side: str, run: Run) -> Iterator[str]:
    """Cells that failed, are missing or invalid, or unlike the most of their run."""
    for cell in run.cells[~run.cells["counts"].astype(bool)].to_dict("records"):
        why = cell["unlike"] or cell["flags"].replace(";", ", ") or cell["status"]
        status = "not valid" if cell["status"] == "done" and not cell["valid"] else cell["status"]
        words = f"unlike the most of its run: {why}" if cell["unlike"] else status
        if why not in words:
            words += f" ({why})"
        yield f"not counted in {side}: {cell['cell']}: {words}"


def _cells(count: int) -> str:
    return f"{count} cell" if count == 1 else f"{count} cells"

"""The matrix: each defect, the mechanism that names it, its verdict and the cause that it gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tests.defects.plants  # noqa: F401
from tests.defects.defect import DEFECTS, Defect
from tests.defects.running import Finding, findings, run_healthy

MECHANISMS = {
    "invariants": (
        *("replica parameters", "evaluation", "continuity", "modes", "generators"),
        *("running statistics", "optimizer", "all-reduce", "no-checkpoint"),
    ),
    "data-digests": ("data", "order"),
    "record-audit": (
        *("records", "same code", "step counts", "step times", "schedule", "barriers"),
        *("between-steps", "threads", "damaged"),
    ),
}
"""The names of the checks of each mechanism that has several; others are named as it is."""


@dataclass(frozen=True)
class Row:
    """A defect, all findings of its run, and the one that names it as it is to be named."""

    defect: Defect
    all: list[Finding]

    @cached_property
    def named(self) -> Finding | None:
        return next((each for each in self.all if _names(each, self.defect)), None)

    def __str__(self) -> str:
        of_mechanism = (f for f in self.all if mechanism_of(f) == self.defect.mechanism)
        best = self.named or next(of_mechanism, next(iter(self.all), None))
        if best is None:
            return f"{self.defect.name:<64} PASSES"
        sign = "" if self.named else "OTHERWISE "
        by = f"{sign}{mechanism_of(best)}: {best.verdict}"
        return f"{self.defect.name:<64} {by:<30} {' '.join(best.words.split())[:160]}"


class Matrix:
    """Plants defects in an empty folder, and keeps their rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self.rows: list[Row] = []

    def row(self, name: str) -> Row:
        here = self._folder / f"defect-{next(self._numbers)}"
        row = Row(DEFECTS[name], list(findings(DEFECTS[name], here, self._healthy(name))))
        self.rows.append(row)
        return row

    def _healthy(self, name: str) -> Path:
        return self._real if DEFECTS[name].how == "files" else self._folder

    @cached_property
    def _real(self) -> Path:
        return run_healthy(self._folder / "healthy")


def mechanism_of(finding: Finding) -> str:
    return next((name for name, of in MECHANISMS.items() if finding.check in of), finding.check)


def _names(finding: Finding, defect: Defect) -> bool:
    return mechanism_of(finding) == defect.mechanism and defect.words in finding.words


def print_matrix(rows: list[Row]) -> Iterator[str]:
    """The rows as lines of text, under the name of their class, and how many are caught."""
    for kind, of_kind in itertools.groupby(rows, lambda row: row.defect.kind):
        yield f"-- {kind}"
        yield from map(str, of_kind)
    yield f"{sum(row.named is not None for row in rows)} of {len(rows)} defects are named"

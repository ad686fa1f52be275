"""What watches find: how often each looked, and what it saw that must not be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gnnhpc.records.schema import Phase

KEPT = 4
"""Findings of one check that a rank keeps: the first ones; the others are counted."""


@dataclass(frozen=True)
class Finding:
    """Something wrong that a rank saw; `check` is the name of the check that it fails."""

    check: str
    phase: Phase
    step: int
    cause: str

    def __str__(self) -> str:
        return f"{self.phase} step {self.step}: {self.cause}"


@dataclass
class Findings:
    """Of one rank, over its whole run."""

    looks: Counter[str] = field(default_factory=Counter)
    """Steps that each check has looked at."""
    wrong: Counter[str] = field(default_factory=Counter)
    """Findings of each check, those that were not kept included."""
    kept: list[Finding] = field(default_factory=list)

    def add(self, check: str, phase: Phase, step: int, cause: str) -> None:
        self.wrong[check] += 1
        if self.wrong[check] <= KEPT:
            self.kept.append(Finding(check, phase, step, cause))

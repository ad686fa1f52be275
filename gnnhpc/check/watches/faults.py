"""What a rank finds wrong step after step, told once with how often it was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FEWEST: Final = 3
"""Steps of a phase, of which a busy machine does not disturb each."""


def in_most(wrong: int, steps: int) -> bool:
    """Whether what a busy machine may do to a few of a phase's steps is so in more: in one of one
    it may be."""
    return wrong >= FEWEST and wrong > steps / 2


@dataclass
class Faults:
    """Kinds of fault, in the order they were found first."""

    _first: dict[str, str] = field(default_factory=dict)
    _steps: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, detail: str) -> None:
        """One step's fault; `detail` says where and how much."""
        self._first.setdefault(kind, detail)
        self._steps[kind] = self._steps.get(kind, 0) + 1

    def told(self) -> list[str]:
        """A sentence a kind, with its first case."""
        return [
            f"{kind} in {self._steps[kind]} steps, first {detail}"
            for kind, detail in self._first.items()
        ]

"""Norms of a rank's gradient over the training steps of an attempt, and where it had none."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GradientNorms:
    """What is told of them at the end."""

    median: float | None
    """None where no step had a norm."""
    steps: int
    first_step: int = 0
    """Of the attempt; later than 0 where it went on from a checkpoint."""
    without: int = 0
    """Steps without a gradient, or with one that is exactly zero."""
    none_from: int | None = None
    """The step from which on all were without."""


@dataclass
class GradientNormsWatch:
    _norms: list[float] = field(default_factory=list)
    _steps: int = 0
    _first_step: int | None = None
    _without: int = 0
    _none_from: int | None = None

    def add(self, step: int, norm: float | None) -> None:
        """After each training step."""
        self._steps += 1
        if self._first_step is None:
            self._first_step = step
        if norm is not None:
            self._norms.append(norm)
        if norm:
            self._none_from = None
            return
        self._without += 1
        if self._none_from is None:
            self._none_from = step

    def seen(self) -> GradientNorms:
        median = statistics.median(self._norms) if self._norms else None
        first = self._first_step or 0
        return GradientNorms(median, self._steps, first, self._without, self._none_from)

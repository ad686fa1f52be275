"""Finds where siblings leave one another: their losses and norms as arrays, one against all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.across.rounding import (
    Comparison,
    Limits,
    Values,
    both_diverged,
    compare,
    relative_difference,
    so_far,
)
from analysis.across.sibling import Departure, Place, Quantity, Sibling


class Bounds(NamedTuple):
    loss: Limits
    norm: Limits
    test: Limits


BOUNDS = {
    # Ten times what was measured of healthy siblings, or more. A norm is summed over all parameters
    # of a stage in float32, which costs it more digits than a loss.
    "float32": Bounds(
        Limits(1e-5, 1e-5, 200.0), Limits(4e-4, 1e-4, 200.0), Limits(None, 1e-6, 2000.0)
    ),
    # What `verify` asks for at the start.
    "float64": Bounds(
        Limits(1e-10, 1e-12, 200.0), Limits(1e-10, 1e-12, 200.0), Limits(None, 1e-12, 2000.0)
    ),
}


class Family:
    """Siblings of one key; `in_training` compares losses and norms, `in_evaluation` test losses."""

    def __init__(self, siblings: Sequence[Sibling]) -> None:
        self.siblings = siblings
        self.bounds = BOUNDS[siblings[0].dtype]
        self._losses = _rows([each.losses for each in siblings])
        self._norms = _rows([each.norms for each in siblings])
        self._places = sorted({place for each in siblings for place in each.tests})
        self._tests = np.array(
            [[each.tests.get(place, np.nan) for place in self._places] for each in siblings]
        ).reshape(len(siblings), len(self._places))

    def in_training(self, reference: int, others: Sequence[int]) -> list[Departure | None]:
        """Where each of `others` leaves `reference` in training; None for those that do not."""
        rows = np.asarray(others, dtype=np.intp)
        diverged = both_diverged(self._losses[reference], self._losses[rows])
        losses = compare(
            self._losses[reference], self._losses[rows], self.bounds.loss, diverged=diverged
        )
        norms = compare(
            self._norms[reference],
            self._norms[rows],
            self.bounds.norm,
            also_apart=self._losses_apart(reference, rows),
            diverged=diverged,
        )
        steps = [(step, 0) for step in range(self._losses.shape[1])]
        by_loss = _departures("training loss", self._losses, losses, reference, rows, steps)
        by_norm = _departures("gradient norm", self._norms, norms, reference, rows, steps)
        return [_earlier(loss, norm) for loss, norm in zip(by_loss, by_norm, strict=True)]

    def in_evaluation(self, reference: int, others: Sequence[int]) -> list[Departure | None]:
        """Where each of `others` leaves `reference` in evaluation; None for those that do not."""
        if not self._places:
            return [None] * len(others)
        rows = np.asarray(others, dtype=np.intp)
        last = [min(steps, self._losses.shape[1]) - 1 for steps, _ in self._places]
        found = compare(
            self._tests[reference],
            self._tests[rows],
            self.bounds.test,
            also_apart=self._losses_apart(reference, rows)[:, last],
            diverged=both_diverged(self._losses[reference], self._losses[rows])[:, last],
        )
        return _departures("test loss", self._tests, found, reference, rows, self._places)

    def steps_judged(self) -> list[int]:
        """Of each sibling, the training steps that were judged beside the first one, of itself all.

        Fewer than it has where rounding grew too far.
        """
        first = self._losses[0]
        diverged = both_diverged(first, self._losses)
        found = compare(first, self._losses, self.bounds.loss, diverged=diverged)
        return [int(steps) for steps in found.concluded]

    def _losses_apart(self, reference: int, rows: NDArray[np.intp]) -> Values:
        """[others, training steps]: how far the losses have come apart by each step."""
        return so_far(relative_difference(self._losses[reference], self._losses[rows]))


def _departures(
    quantity: Quantity,
    values: Values,
    found: Comparison,
    reference: int,
    rows: NDArray[np.intp],
    places: Sequence[Place],
) -> list[Departure | None]:
    """One for each of `rows`; None for those that stay with the reference."""
    return [
        None
        if at < 0
        else Departure(
            quantity,
            places[at],
            float(values[row, at]),
            float(values[reference, at]),
            apart,
            before,
        )
        for row, at, apart, before in zip(
            rows,
            found.departs_at.tolist(),
            found.apart.tolist(),
            found.before.tolist(),
            strict=True,
        )
    ]


def _earlier(loss: Departure | None, norm: Departure | None) -> Departure | None:
    """The one of the earlier step; of the same step the loss, which is computed first."""
    if loss is None or norm is None:
        return loss or norm
    return norm if norm.place < loss.place else loss


def _rows(series: Sequence[Values]) -> Values:
    """Series of any length as rows of one array, missing steps nan."""
    rows = np.full((len(series), max((len(one) for one in series), default=0)), np.nan)
    for row, one in zip(rows, series, strict=True):
        row[: len(one)] = one
    return rows

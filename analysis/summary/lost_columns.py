"""Columns of the summary that take a training step apart, against the sequential run."""

from __future__ import annotations

from analysis.summary.bounds import bound_of
from analysis.summary.configurations import Configuration
from analysis.summary.lost_time import COLUMNS, StepSeconds, take_apart


def lost_columns(
    row: Configuration, best: Configuration | None, same: Configuration | None
) -> dict[str, float | None]:
    """The parts of `analysis.summary.lost_time`; None without the seconds that they follow from.

    `best` is the sequential run in one micro-batch, `same` the one in as many as `row`.
    """
    step, ideal = row.seconds, row.mean("ideal_mean_s")
    alone = _for_as_many(row, best)
    most = bound_of(row)
    if row.phase != "train" or step is None or ideal is None or alone is None or most is None:
        return dict.fromkeys(COLUMNS)
    return take_apart(
        step,
        ideal,
        alone,
        _for_as_many(row, same),
        ranks=row.layout.world_size,
        stretch=row.layout.world_size / most,
    ).columns()


def _for_as_many(row: Configuration, other: Configuration | None) -> StepSeconds | None:
    """The other's seconds, for as many samples as `row` has a step."""
    seconds = other.seconds if other else None
    samples, mine = other.mean("samples") if other else None, row.mean("samples")
    if seconds is None or not samples or not mine:
        return None
    return seconds.times(mine / samples)

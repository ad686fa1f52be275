"""Columns of the summary that take a training step apart, against the sequential run."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.summary.baseline import Baseline, find_baseline
from analysis.summary.configurations import Configuration
from analysis.summary.lost_time import COLUMNS, StepSeconds, take_apart


def lost_columns(row: Configuration, rows: Sequence[Configuration]) -> dict[str, float | None]:
    """The parts of `analysis.summary.lost_time`; None without the seconds that they follow from."""
    lost: dict[str, float | None] = dict.fromkeys(COLUMNS)
    step, ideal = row.seconds, row.mean("ideal_mean_s")
    best = _sequential(row, rows, 1)
    if row.phase != "train" or step is None or ideal is None or best is None:
        return lost
    stages, microbatches = row.layout.stages, row.microbatches
    return take_apart(
        step,
        ideal,
        best,
        best if microbatches == 1 else _sequential(row, rows, microbatches),
        ranks=row.layout.world_size,
        stretch=(microbatches + stages - 1) / microbatches,
    ).columns()


def _sequential(
    row: Configuration, rows: Sequence[Configuration], microbatches: int
) -> StepSeconds | None:
    """Of the sequential run in so many micro-batches, for as many samples as `row` has a step."""
    found, _ = find_baseline(row, rows, Baseline(microbatches=microbatches))
    seconds = found.seconds if found else None
    samples, mine = found.mean("samples") if found else None, row.mean("samples")
    if seconds is None or not samples or not mine:
        return None
    return seconds.times(mine / samples)

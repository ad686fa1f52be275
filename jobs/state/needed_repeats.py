"""How many repeats a wanted precision needs, as far as a run's repeats tell how runs differ."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from gnnhpc.core.layout import Layout
from gnnhpc.core.student_t import repeats_needed
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from jobs.folder.attempt_files import list_attempts, read_attempt_result, read_training_s

_MAY_DIFFER = {
    "layout", "microbatches", "train_steps", "test_steps", "test_every",
    "warmup_steps", "batchnorm", "schedule", "virtual_stages", "engine", "chunks", "rebuild",
    "balance", "bucket_mib", "seed", "repeat", "spans", "save_every",
}  # fmt: skip
"""Fields in which a cell and the sequential one that it is compared with may differ."""

Logs = dict[tuple[int, int], float]
"""Logarithm of the mean training step of each run, by seed and repeat."""


@dataclass(frozen=True)
class Spread:
    """How much runs, or the ratios of pairs of runs, differ, and how many repeats that asks for."""

    runs: int
    share: float
    """Standard deviation of the logarithms."""
    repeats: int | None
    """None where even ten thousand are too few."""


@dataclass(frozen=True)
class Needed:
    """What one configuration needs; None where fewer than two runs have ended."""

    array: str
    microbatches: int
    step: Spread | None
    """For the mean step time."""
    speedup: Spread | None
    """For the speedup over the sequential run with one micro-batch."""

    @property
    def repeats(self) -> int | None:
        """Of both the most; None where nothing is known or no number is enough."""
        counts = [spread.repeats for spread in (self.step, self.speedup) if spread is not None]
        known = [count for count in counts if count is not None]
        return max(known) if known and len(known) == len(counts) else None


def needed_repeats(paths: RunPaths, precision: float) -> list[Needed]:
    """A row a configuration, from the training steps of its valid runs after warm-up."""
    cells: dict[str, list[Cell]] = {}
    for cell in read_manifest(paths.manifest):
        plain = cell.experiment.model_copy(update={"seed": 0, "repeat": 0})
        cells.setdefault(plain.id, []).append(cell)
    attempts = list_attempts(paths)
    logs = {key: dict(_logs(same, attempts)) for key, same in cells.items()}
    baselines = {
        _study(same[0].experiment): logs[key]
        for key, same in cells.items()
        if (same[0].experiment.layout, same[0].experiment.microbatches) == (Layout(), 1)
    }
    return [
        _needed(same[0], logs[key], baselines.get(_study(same[0].experiment), {}), precision)
        for key, same in cells.items()
    ]


def _logs(
    cells: list[Cell], attempts: dict[str, list[AttemptPaths]]
) -> Iterator[tuple[tuple[int, int], float]]:
    """Of each cell the newest valid attempt."""
    for cell in cells:
        for attempt in attempts.get(cell.id, []):
            result = read_attempt_result(attempt)
            if result is not None and result.valid:
                seconds = read_training_s(attempt)
                if seconds:
                    mean = statistics.fmean(seconds)
                    yield (cell.experiment.seed, cell.experiment.repeat), math.log(mean)
                break


def _study(experiment: Experiment) -> str:
    """Equal for cells that a speedup may compare."""
    return json.dumps(experiment.model_dump(mode="json", exclude=_MAY_DIFFER), sort_keys=True)


def _needed(cell: Cell, mine: Logs, baseline: Logs, precision: float) -> Needed:
    ratios = [mine[run] - baseline[run] for run in mine if run in baseline]
    speedup = None if baseline is mine else _spread(ratios, precision)
    step = _spread(list(mine.values()), precision)
    return Needed(cell.array, cell.experiment.microbatches, step, speedup)


def _spread(logs: list[float], precision: float) -> Spread | None:
    if len(logs) < 2:
        return None
    share = statistics.stdev(logs)
    return Spread(len(logs), share, repeats_needed(share, precision))

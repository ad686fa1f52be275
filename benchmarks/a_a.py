"""`python -m benchmarks.a_a RUN` counts how often repeats of one cell are called different.

All runs of the cell measure the same thing (an A/A study), so every interval of a ratio that
excludes 1 is a false effect; of 95 % intervals one in twenty should be. Groups of 3 and of 5 runs
are compared with as many others in two ways: as pairs of consecutive runs, as a paired sweep
measures its layouts, and as groups that have nothing in common (Welch).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.run_data import load_run
from analysis.render.document import Table
from analysis.render.formats import table_to_markdown
from analysis.statistics.intervals import median, t_bounds, welch_bounds
from analysis.statistics.noise import counted_step_times
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError, report_errors

Values = NDArray[np.float64]
GROUPS = (3, 5)
SPLITS = 20_000
MOST = 0.07
"""The largest share of false effects that a 95 % interval may have here."""


@dataclass(frozen=True)
class FalseEffects:
    """The share of groups of so many repeats that are called different."""

    repeats: int
    way: str
    of: str
    share: float


@report_errors
def main() -> int:
    """0 when all shares are at most 7 %, 1 when one is more, 2 for a folder that is no run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.a_a", description=__doc__)
    parser.add_argument("run", type=Path, help="a run of jobs/sweeps/a-a.yaml")
    seconds = read_runs(parser.parse_args().run)
    found = list(false_effects({of: np.log(values) for of, values in seconds.items()}))
    means = seconds["mean"]
    title = (
        f"{means.size} runs of one cell, whose means differ by "
        f"{means.std(ddof=1) / means.mean():.1%} (standard deviation); {SPLITS:,} splits a line"
    )
    print(table_to_markdown(Table("a_a", title, as_frame(found))))
    return EXIT_DONE if all(one.share <= MOST for one in found) else EXIT_FAILED


def read_runs(root: Path) -> dict[str, Values]:
    """Seconds of the mean and of the median training step of each run, in order of time."""
    run = load_run(root)
    cells = run.cells[run.cells["counts"]].sort_values("started_at", kind="stable")
    if cells[list(run.settings)].nunique(dropna=False).max() > 1:
        raise InputError(root, "cells", "several settings", "repeats of one cell")
    if len(cells) < 2 * max(GROUPS):
        raise InputError(root, "cells", f"{len(cells)} that count", f"{2 * max(GROUPS)} or more")
    steps = counted_step_times(run.steps)
    walls = [steps[str(cell), "train"] for cell in cells["cell"]]
    return {
        "mean": np.array([wall.mean() for wall in walls]),
        "median": np.array([median(wall) for wall in walls]),
    }


def false_effects(logs: dict[str, Values], splits: int = SPLITS) -> Iterator[FalseEffects]:
    """The share of random splits whose interval excludes equality, for each size and way."""
    rng = np.random.default_rng(0)
    for repeats in GROUPS:
        for of, values in logs.items():
            pairs = _neighbours(values.size, repeats, splits, rng)
            one, other = values[pairs[..., 0]], values[pairs[..., 1]]
            yield FalseEffects(repeats, "pairs", of, _excluded(t_bounds(one - other)))
            groups = rng.permuted(np.tile(np.arange(values.size), (splits, 1)), axis=1)
            one, other = values[groups[:, :repeats]], values[groups[:, repeats : 2 * repeats]]
            yield FalseEffects(repeats, "groups (Welch)", of, _excluded(welch_bounds(one, other)))


def _neighbours(runs: int, repeats: int, splits: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """[splits, repeats, 2]: pairs of runs that follow one another, each in either order."""
    first = 2 * np.argsort(rng.random((splits, runs // 2)), axis=1)[:, :repeats]
    swapped = rng.integers(0, 2, first.shape)
    return np.stack([first + swapped, first + 1 - swapped], axis=-1)


def _excluded(bounds: tuple[Values, Values]) -> float:
    low, high = bounds
    return float(((low > 0.0) | (high < 0.0)).mean())


def as_frame(found: list[FalseEffects]) -> pd.DataFrame:
    """A row a number of repeats and way, a column a quantity."""
    rows: dict[tuple[int, str], dict[str, object]] = {}
    for one in found:
        row = rows.setdefault(
            (one.repeats, one.way), {"repeats": one.repeats, "compared as": one.way}
        )
        row[f"false effects, {one.of}"] = f"{one.share:.1%}"
    return pd.DataFrame(list(rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())

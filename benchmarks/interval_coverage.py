"""How often 95 % intervals contain the truth.

    python -m benchmarks.interval_coverage        # simulates studies whose truth is known
    python -m benchmarks.interval_coverage RUN    # how often repeats of one cell seem to differ

In a simulated study runs differ by a normal factor; within a run consecutive steps are correlated
(AR(1)). Noise is normal, or skewed to the right in one of two ways: exponential shocks that fade,
or steps whose times above a least time are exponential. Each share is of 4,000 studies. The table
has the lowest and the highest share over run-to-run spreads of 0, 2 and 5 %, correlations of 0,
0.35 and 0.7, and 10, 30 and 100 steps. For speedups in pairs, half of the variance between runs is
common to a repeat; for unpaired ones the other side's runs differ as much, or not at all.

All runs of a cell measure the same thing (an A/A study), so every interval of a ratio that excludes
1 is a false effect; of 95 % intervals one in twenty should be. Groups of 3 and of 5 runs are
compared with as many others in two ways: as pairs of consecutive runs, as a paired sweep measures
its layouts, and as groups that have nothing in common (Welch).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import log_ndtr

from analysis.load.run_data import load_run
from analysis.render.document import Table
from analysis.render.formats import table_to_markdown
from analysis.statistics.cut_warmup_steps import counted_step_times
from analysis.statistics.intervals import median, t_bounds, welch_bounds
from analysis.statistics.sample import skewness_of_means
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError, report_errors

Values = NDArray[np.float64]
NOISES = ("normal", "skewed shocks", "skewed steps")
RUNS = (2, 3, 5, 10)
STEPS = (10, 30, 100)
CORRELATIONS = (0.0, 0.35, 0.7)
SPREADS = (0.0, 0.02, 0.05)
STEP_NOISE = 0.03
"""Standard deviation of a step, relative."""
STUDIES = 4_000
_SETTLE = 40
"""Steps that are dropped, so that the series does not depend on its start."""
GROUPS = (3, 5)
SPLITS = 20_000
MOST = 0.07
"""The largest share of false effects that a 95 % interval may have in an A/A study."""


class Share(NamedTuple):
    """Of intervals of so many runs, the share that contains the truth, or that misses it."""

    kind: str
    """The kind of noise, or the way in which groups are compared."""
    runs: int
    of: str
    share: float


@report_errors
def main() -> int:
    """1 where an A/A study has more than 7 % false effects, 2 for a folder that is no run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interval_coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="?", type=Path, help="a run of jobs/sweeps/a-a.yaml")
    root = parser.parse_args().run
    if root is None:
        found = [
            share for noise in NOISES for rho in CORRELATIONS for share in coverage(noise, rho)
        ]
        title = "Share of 95% intervals that contain the truth: lowest to highest"
    else:
        seconds = read_runs(root)
        found = list(false_effects({of: np.log(values) for of, values in seconds.items()}))
        means = seconds["mean"]
        title = (
            f"Share of intervals that exclude equality, of {SPLITS:,} splits of {means.size} runs "
            f"of one cell, whose means differ by {means.std(ddof=1) / means.mean():.1%} (standard "
            "deviation)"
        )
    print(table_to_markdown(Table("intervals", title, as_frame(found))))
    return EXIT_DONE if root is None or all(s.share <= MOST for s in found) else EXIT_FAILED


def as_frame(found: Iterable[Share]) -> pd.DataFrame:
    """A row a kind and number of runs, with the lowest and the highest share of each quantity."""
    frame = pd.DataFrame(found)
    grouped = frame.groupby(["kind", "runs", "of"], sort=False)["share"].agg(["min", "max"])
    low, high = (grouped[bound].map("{:.3f}".format) for bound in ("min", "max"))
    table = low.where(low == high, low + " to " + high).unstack("of")
    return table[list(dict.fromkeys(frame["of"]))].fillna("as unpaired").reset_index()


def coverage(
    noise: str,
    correlation: float,
    *,
    runs: tuple[int, ...] = RUNS,
    steps: tuple[int, ...] = STEPS,
    spreads: tuple[float, ...] = SPREADS,
    seed: int = 0,
) -> Iterator[Share]:
    """The share for each number of runs, steps and spread; all use the same simulated series."""
    rng = np.random.default_rng(seed)
    shape = (2, STUDIES, max(runs), _SETTLE + max(steps))
    series = 1.0 + STEP_NOISE * _series(noise, correlation, shape, rng)
    true_median = float(np.log(np.median(series[0])))
    differ = rng.standard_normal((3, STUDIES, max(runs)))
    for count in steps:
        part = series[..., :count]
        means, medians = np.log(part.mean(axis=-1)), np.log(np.median(part, axis=-1))
        for spread in spreads:
            own, other, hour = spread * differ
            pairs = means + np.sqrt(0.5) * np.stack([own + hour, other + hour])
            first, second = means[0] + own, means[1] + other
            for n in runs:
                skewness = skewness_of_means(part[0, :, :n], first[:, :n].std(axis=-1, ddof=1))
                bounds = {"mean": [t_bounds(first[:, :n], skewness=skewness)]}
                bounds["median"] = [t_bounds((medians[0] + own - true_median)[:, :n])]
                if n > 2:
                    bounds["speedup, pairs"] = [t_bounds((pairs[0] - pairs[1])[:, :n])]
                bounds["speedup, unpaired"] = [
                    welch_bounds(first[:, :n], steady[:, :n]) for steady in (second, means[1])
                ]
                for of, each in ((of, each) for of, several in bounds.items() for each in several):
                    yield Share(noise, n, of, 1.0 - _share_without_zero(each))


def _series(
    noise: str, correlation: float, shape: tuple[int, ...], rng: np.random.Generator
) -> Values:
    """[..., steps] correlated noise of mean 0 and variance 1."""
    exponential = noise == "skewed shocks"
    shocks = rng.exponential(size=shape) - 1.0 if exponential else rng.standard_normal(shape)
    fresh = np.sqrt(1.0 - correlation**2)
    series: Values = lfilter([fresh], [1.0, -correlation], shocks)[..., _SETTLE:]
    # Exponential steps in the order of a normal series.
    return -log_ndtr(-series) - 1.0 if noise == "skewed steps" else series


def _share_without_zero(bounds: tuple[Values, Values]) -> float:
    low, high = bounds
    return float(((low > 0.0) | (high < 0.0)).mean())


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


def false_effects(logs: dict[str, Values], splits: int = SPLITS) -> Iterator[Share]:
    """The share of random splits whose interval excludes equality, for each size and way."""
    rng = np.random.default_rng(0)
    for repeats in GROUPS:
        for of, values in logs.items():
            # Pairs of runs that follow one another, each in either order.
            first = 2 * np.argsort(rng.random((splits, values.size // 2)), axis=1)[:, :repeats]
            swapped = rng.integers(0, 2, first.shape)
            bounds = t_bounds(values[first + swapped] - values[first + 1 - swapped])
            yield Share("pairs", repeats, f"false effects, {of}", _share_without_zero(bounds))
            groups = rng.permuted(np.tile(values, (splits, 1)), axis=1)
            bounds = welch_bounds(groups[:, :repeats], groups[:, repeats : 2 * repeats])
            share = _share_without_zero(bounds)
            yield Share("groups (Welch)", repeats, f"false effects, {of}", share)


if __name__ == "__main__":
    raise SystemExit(main())

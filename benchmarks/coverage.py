"""`python -m benchmarks.coverage` simulates how often intervals contain the truth.

Runs differ by a normal factor; within a run consecutive steps are correlated (AR(1)). Noise is
normal, or skewed to the right in one of two ways: exponential shocks that fade, or steps whose
times above a least time are exponential. Each share is of 4,000 simulated studies with a known
truth. The table has the lowest and the highest share over run-to-run spreads of 0, 2 and 5 %,
correlations of 0, 0.35 and 0.7, and 10, 30 and 100 steps. For speedups in pairs, half of the
variance between runs is common to a repeat; for unpaired ones the other side's runs differ as
much, or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.render.document import Table
from analysis.render.formats import table_to_markdown
from analysis.statistics.intervals import CONFIDENCE, t_bounds, welch_bounds
from analysis.statistics.sample import skewness_of_means

Values = NDArray[np.float64]
RUNS = (2, 3, 5, 10)
STEPS = (10, 30, 100)
CORRELATIONS = (0.0, 0.35, 0.7)
SPREADS = (0.0, 0.02, 0.05)
STEP_NOISE = 0.03
"""Standard deviation of a step, relative."""
STUDIES = 4_000
_SETTLE = 40
"""Steps that are dropped, so that the series does not depend on its start."""


@dataclass(frozen=True)
class Held:
    """The share of intervals that contain the truth, in one setting."""

    noise: str
    runs: int
    steps: int
    correlation: float
    spread: float
    of: str
    share: float


def autoregressive(shocks: Values, correlation: float) -> Values:
    """[..., settling and steps] shocks of variance 1 -> [..., steps] series of variance 1."""
    series = np.empty_like(shocks)
    series[..., 0] = shocks[..., 0]
    fresh = np.sqrt(1.0 - correlation**2)
    for step in range(1, shocks.shape[-1]):
        series[..., step] = correlation * series[..., step - 1] + fresh * shocks[..., step]
    return series[..., _SETTLE:]


def _normal(correlation: float, shape: tuple[int, ...], rng: np.random.Generator) -> Values:
    return autoregressive(rng.standard_normal(shape), correlation)


def _skewed_shocks(correlation: float, shape: tuple[int, ...], rng: np.random.Generator) -> Values:
    return autoregressive(rng.exponential(size=shape) - 1.0, correlation)


def _skewed_steps(correlation: float, shape: tuple[int, ...], rng: np.random.Generator) -> Values:
    """Exponential steps whose order is that of a normal series."""
    from scipy.special import log_ndtr

    longer: Values = -log_ndtr(-_normal(correlation, shape, rng)) - 1.0
    return longer


NOISES: dict[str, Callable[[float, tuple[int, ...], np.random.Generator], Values]] = {
    "normal": _normal,
    "skewed shocks": _skewed_shocks,
    "skewed steps": _skewed_steps,
}


def coverage(
    noise: str,
    correlation: float,
    *,
    studies: int = STUDIES,
    runs: tuple[int, ...] = RUNS,
    steps: tuple[int, ...] = STEPS,
    spreads: tuple[float, ...] = SPREADS,
    seed: int = 0,
) -> Iterator[Held]:
    """The share for each number of runs, steps and spread; all use the same simulated series."""
    rng = np.random.default_rng(seed)
    shape = (2, studies, max(runs), _SETTLE + max(steps))
    series = 1.0 + STEP_NOISE * NOISES[noise](correlation, shape, rng)
    true_median = float(np.log(np.median(series[0])))
    differ = rng.standard_normal((3, studies, max(runs)))
    for count in steps:
        part = series[..., :count]
        means, medians = np.log(part.mean(axis=-1)), np.log(np.median(part, axis=-1))
        for spread in spreads:
            own, other, hour = spread * differ
            pairs = means + np.sqrt(0.5) * np.stack([own + hour, other + hour])
            for n in runs:
                held = partial(Held, noise, n, count, correlation, spread)
                first, second = means[0] + own, means[1] + other
                skewness = skewness_of_means(part[0, :, :n], first[:, :n].std(axis=-1, ddof=1))
                yield held("mean", _share(t_bounds(first[:, :n], skewness=skewness), 0.0))
                bounds = t_bounds((medians[0] + own)[:, :n])
                yield held("median", _share(bounds, true_median))
                if n > 2:
                    bounds = t_bounds((pairs[0] - pairs[1])[:, :n])
                    yield held("speedup, pairs", _share(bounds, 0.0))
                for steady in (second, means[1]):
                    bounds = welch_bounds(first[:, :n], steady[:, :n])
                    yield held("speedup, unpaired", _share(bounds, 0.0))


def _share(bounds: tuple[Values, Values], truth: float) -> float:
    low, high = bounds
    return float(((low <= truth) & (truth <= high)).mean())


def as_frame(found: list[Held]) -> pd.DataFrame:
    """One row a kind of noise and number of runs, with the lowest and highest of each quantity."""
    frame = pd.DataFrame([vars(one) for one in found])
    grouped = frame.groupby(["noise", "runs", "of"], sort=False)["share"].agg(["min", "max"])
    words = grouped["min"].map("{:.3f}".format) + " to " + grouped["max"].map("{:.3f}".format)
    table = words.unstack("of")[list(dict.fromkeys(frame["of"]))]
    return table.fillna("as unpaired").reset_index().rename_axis(columns=None)


def main() -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__).parse_args()
    found = [one for noise in NOISES for rho in CORRELATIONS for one in coverage(noise, rho)]
    title = f"Share of {CONFIDENCE:.0%} intervals that contain the truth: lowest to highest"
    print(table_to_markdown(Table("coverage", title, as_frame(found))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

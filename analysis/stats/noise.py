"""Marks the steps that count, and measures the machine's noise, for each cell and phase."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.step_times import detect_warmup, drift, effective_n, mark_outliers

_OF_RANKS = ("cpu_share", "steal_share", "switches_per_step")
PHASE_COLUMNS = [
    "cell",
    "phase",
    "n",
    "warmup_dropped",
    "looked_dropped",
    "unlike_dropped",
    "outliers",
    "n_effective",
    "drift",
    *_OF_RANKS,
]


def mark_steps(steps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The steps (sorted by cell and phase) with `kept` and `outlier`; and one row a cell and phase.

    `uneven` are those with fewer samples than others, such as the last of an epoch of a sampled
    graph: they count, and say nothing of noise. Not kept are steps of an unlike attempt that was
    resumed, and warm-up steps: those that the run marked, and further ones that are detected; nor
    those that were looked at closely, where as many others remain. `warmup_dropped`,
    `looked_dropped` and `unlike_dropped` count them: with `n` they add up to the steps recorded.
    Outliers are marked among the kept steps and stay.
    """
    wall, samples = steps["step_s"].to_numpy(), steps["samples"].to_numpy()
    unlike, looked = (steps[name].to_numpy().astype(bool) for name in ("unlike", "looked"))
    given = steps["warmup"].to_numpy().astype(bool) | unlike
    kept, outlier, uneven = np.ones(len(steps), bool), *np.zeros((2, len(steps)), bool)
    cell, phase = steps["cell"].to_numpy(), steps["phase"].to_numpy()
    rows: list[dict[str, Any]] = []
    for part in cell_phase_slices(steps):
        marked = int(np.argmin(given[part])) if not given[part].all() else part.stop - part.start
        uneven[part] = samples[part] < samples[part].max()
        found = _warmup(wall[part][marked:], ~uneven[part][marked:])
        first = part.start + marked + found
        kept[part.start : first] = False
        kept[part] &= ~given[part]
        dropped = int((~kept[part] & ~unlike[part]).sum())
        warmed_up = int(kept[part].sum())
        others = kept[part] & ~looked[part]
        if 2 * others.sum() >= warmed_up:
            kept[part] = others
        counted = wall[part][kept[part]]
        even = wall[part][kept[part] & ~uneven[part]]
        settled = slice(first, part.stop)
        outlier[settled] = mark_outliers(np.where(uneven[settled], np.nan, wall[settled]))
        outlier[part] &= kept[part]
        rows.append(
            {
                "cell": cell[part.start],
                "phase": phase[part.start],
                "n": counted.size,
                "warmup_dropped": dropped,
                "looked_dropped": warmed_up - counted.size,
                "unlike_dropped": int(unlike[part].sum()),
                "outliers": int(outlier[part].sum()),
                "n_effective": effective_n(even),
                "drift": drift(even),
            }
        )
    marked_steps = steps.assign(kept=kept, outlier=outlier, uneven=uneven)
    return marked_steps, pd.DataFrame(rows, columns=PHASE_COLUMNS[: -len(_OF_RANKS)])


def _warmup(wall: NDArray[np.float64], even: NDArray[np.bool_]) -> int:
    """How many steps at the start are warm-up, as those of equal samples show it."""
    found = detect_warmup(wall[even])
    return int(np.flatnonzero(even)[found]) if found else 0


def cell_phase_slices(frame: pd.DataFrame) -> list[slice]:
    """The slice of each cell and phase, in a frame that is sorted by them."""
    if frame.empty:
        return []
    cell, phase = frame["cell"].cat.codes.to_numpy(), frame["phase"].cat.codes.to_numpy()
    changes = np.flatnonzero((np.diff(cell) != 0) | (np.diff(phase) != 0)) + 1
    edges = [0, *changes.tolist(), len(frame)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def add_noise_columns(phases: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame:
    """`phases` with cpu_share, steal_share and switches_per_step, from steps without warm-up.

    cpu_share is processor time of the computing threads over their computing time, steal_share
    steal over wall time, the switches are involuntary ones a rank and step. A cpu_share well below
    the threads, or steal, means that other processes used the CPU. Missing where the system does
    not report them.
    """
    keys = [ranks["cell"], ranks["phase"]]
    work = pd.DataFrame(
        {
            "cpu": ranks["cpu_s"],
            "busy": _busy_s(ranks),
            "wall": ranks["wall_s"],
            "steal": ranks["steal_s"],
            "switches": ranks["involuntary_switches"],
        }
    )[~ranks["warmup"].to_numpy().astype(bool)]
    grouped = work.groupby(keys, observed=True)
    sums = grouped.sum(min_count=1)
    shares = pd.DataFrame(
        {
            "cpu_share": _ratio(sums["cpu"], sums["busy"]),
            "steal_share": _ratio(sums["steal"], sums["wall"]),
            "switches_per_step": grouped["switches"].mean(),
        }
    )
    return phases.merge(shares.reset_index(), on=["cell", "phase"], how="left")


def _busy_s(ranks: pd.DataFrame) -> pd.Series[float]:
    """Seconds that `cpu_s` is measured in: computing; in older records all of its spans."""
    computing = ranks["forward_s"] + ranks["backward_s"] + ranks["optimizer_s"]
    older = ranks["waiting_cpu_s"].isna()
    return computing.where(~older, ranks["wall_s"] - ranks["outside_s"])


def _ratio(part: pd.Series[float], whole: pd.Series[float]) -> pd.Series[float]:
    return part / whole.where(whole > 0.0)


def counted_step_times(steps: pd.DataFrame) -> dict[tuple[str, str], NDArray[np.float64]]:
    """(cell, phase) -> seconds of its kept steps, in order."""
    wall, kept = steps["step_s"].to_numpy(), steps["kept"].to_numpy()
    cell, phase = steps["cell"].astype(str).to_numpy(), steps["phase"].astype(str).to_numpy()
    return {
        (cell[part.start], phase[part.start]): wall[part][kept[part]]
        for part in cell_phase_slices(steps)
    }

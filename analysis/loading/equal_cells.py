"""Whether cells that both runs have learnt the same, step by step, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.across.departures import Family
from analysis.across.sibling import Sibling
from analysis.across.sibling_key import evaluated_after
from analysis.loading.run import Run
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths


@dataclass(frozen=True)
class Losses:
    """What comparing the losses and gradient norms of equal cells found."""

    compared: int
    """Cells that are valid in both runs."""
    apart: list[str]
    """A line for each cell that learnt something else in the second."""


def compare_losses(a: Run, b: Run) -> Losses:
    """Compare the valid cells of equal id, which have the same settings and seed."""
    valid = [set(run.cells.loc[run.cells["valid"], "cell"].astype(str)) for run in (a, b)]
    manifest = read_manifest(RunPaths(a.root).manifest)
    common = {cell.id: cell.experiment for cell in manifest if cell.id in valid[0] & valid[1]}
    ours, theirs = _learnt(a, common), _learnt(b, common)
    compared, apart = 0, []
    for name in common:
        if name not in ours or name not in theirs:
            continue
        compared += 1
        family = Family([ours[name], theirs[name]])
        gone = family.in_training(0, [1])[0] or family.in_evaluation(0, [1])[0]
        if gone is not None:
            apart.append(f"{name}: {gone.words} (there: the first run); {gone.likely_cause}")
    return Losses(compared, apart)


def _learnt(run: Run, common: dict[str, Experiment]) -> dict[str, Sibling]:
    """Losses, gradient norms and test losses of these cells."""
    rows = run.ranks[run.ranks["cell"].isin(list(common))]
    table = pd.DataFrame(
        {
            "cell": rows["cell"].astype(str),
            "test": rows["phase"] == "test",
            "step": rows["step"],
            "loss": rows["loss"],
            # All replicas have the same gradient.
            "square": np.where(rows["replica"] == 0, rows["grad_norm"] ** 2, np.nan),
        }
    )
    grouped = table.groupby(["cell", "test", "step"], sort=True)
    merged = grouped.agg(loss=("loss", "max"), square=("square", _sum_of_known)).reset_index()
    found = {}
    for name, part in merged.groupby("cell", sort=False):
        experiment = common[str(name)]
        train, test = part[~part["test"]], part[part["test"]]
        tests = {
            evaluated_after(int(step), experiment): float(loss)
            for step, loss in zip(test["step"], test["loss"], strict=True)
        }
        if len(train):
            found[str(name)] = Sibling(
                str(name),
                0,
                "",
                (),
                _by_step(train, train["loss"].to_numpy()),
                _by_step(train, np.sqrt(train["square"].to_numpy())),
                tests,
                dtype=experiment.dtype,
            )
    return found


def _sum_of_known(squares: pd.Series[float]) -> float:
    return float(squares.sum(min_count=1))


def _by_step(rows: pd.DataFrame, values: np.ndarray) -> np.ndarray:
    """[steps] from step 0, nan where there is none."""
    steps = rows["step"].to_numpy()
    series = np.full(int(steps[-1]) + 1, np.nan)
    series[steps] = values
    return series

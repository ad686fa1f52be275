"""What stands beside a mean step time is of the same kind: the mean of the runs' means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.loading.run import Run, load
from analysis.papers.vig_tables_beside_ours import layer_group_rows
from analysis.summary.lost_time import COLUMNS
from analysis.summary.summary_table import summarise
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import assign_indices
from gnnhpc.records.run_paths import RunPaths
from tests.analysis.test_boca_study import cell
from tests.analysis.test_several_parts import change_records
from tests.analysis.test_summary import row, three, vig
from tests.tools.make_run import Machine, make_run

UNLIKE = Machine(noise=0.2, runs_differ=0.5)
"""Runs of very different pace, so that it shows which weight each has."""


def look_at(root: Path, cells: Sequence[Experiment], many: int) -> None:
    """Many training steps of each first repeat were looked at closely, so they drop out."""

    def mark(record: dict[str, Any]) -> None:
        if record["kind"] == "step" and record["phase"] == "train":
            record["looked"] = 0 < record["step"] <= many

    for planned in assign_indices(cells):
        if planned.experiment.repeat == 0:
            change_records(RunPaths(root).cell(planned.id).root, mark)


def make_unlike(folder: Path, cells: Sequence[Experiment], many: int) -> Run:
    root = make_run(folder / "run", cells, machine=UNLIKE)
    look_at(root, cells, many)
    return load(root)


def mean_of_means(run: Run, cells: pd.Series, column: str) -> float:
    """Recomputed from the ranks' records of the steps that count; of a rank on average."""
    kept = run.steps.loc[run.steps["kept"], ["cell", "phase", "step"]]
    ranks = run.ranks.merge(kept, on=["cell", "phase", "step"])
    ranks = ranks[ranks["cell"].isin(cells) & (ranks["phase"] == "train")]
    return float(ranks.groupby("cell", observed=True)[column].mean().mean())


def cells_of(run: Run, layout: str) -> pd.Series:
    return run.cells.loc[run.cells["layout"] == layout, "cell"]


def unlike_counts(run: Run, layout: str) -> bool:
    counts = run.phases.set_index(["cell", "phase"])["n"]
    return len({counts[one, "train"] for one in cells_of(run, layout)}) > 1


def test_parts_of_a_sampled_step_are_means_of_runs(tmp_path: Path) -> None:
    run = make_unlike(tmp_path, [cell("ours", "seq", repeat) for repeat in range(3)], 10)
    assert unlike_counts(run, "seq")
    one = row(summarise(run), "seq", 1)
    mine = cells_of(run, "seq")
    told = one[["n", "warmup_dropped", "looked_dropped", "unlike_dropped"]].tolist()
    assert told == [3 * 20 - 10, 3, 10, 0]
    for name in ("data_s", "sample_s", "gather_s", "allreduce_s"):
        assert one[name] == pytest.approx(mean_of_means(run, mine, name)), name
    computed = ("forward_s", "backward_s", "optimizer_s")
    assert one["compute_s"] == pytest.approx(
        sum(mean_of_means(run, mine, name) for name in computed)
    )
    # Of one rank all its seconds have a name, so the step is their sum.
    named = ("data_s", *computed, "allreduce_s", "wait_s")
    assert one["mean_s"] == pytest.approx(sum(mean_of_means(run, mine, name) for name in named))


def test_a_step_is_taken_apart_by_means_of_runs(tmp_path: Path) -> None:
    """Half of the steps of one run do not count: it is one run of three all the same."""
    run = make_unlike(tmp_path, three(vig(), vig("dp2", 1)), 4)
    assert unlike_counts(run, "seq") and unlike_counts(run, "dp2")
    one = row(summarise(run), "dp2", 1)
    passes = [
        sum(
            mean_of_means(run, cells_of(run, layout), f"{way}_s") for way in ("forward", "backward")
        )
        for layout in ("dp2", "seq")
    ]
    # Twice the samples on two ranks: the sequential run's passes, once.
    lost = one["lost_company_s"] + np.nan_to_num(one["lost_microbatches_s"])
    assert lost == pytest.approx(passes[0] - passes[1])
    assert one["lost_allreduce_s"] == pytest.approx(
        mean_of_means(run, cells_of(run, "dp2"), "allreduce_s")
    )
    assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
    assert one["samples_per_s"] == pytest.approx(40 / one["mean_s"])


def test_a_layers_mean_is_in_the_midst_of_its_runs(tmp_path: Path) -> None:
    run = make_unlike(tmp_path, three(vig()), 4)
    kept = run.steps.loc[run.steps["kept"], ["cell", "phase", "step"]]
    groups = run.groups.merge(kept, on=["cell", "phase", "step"])
    groups = groups[(groups["phase"] == "train") & groups["group"].astype(str).str.match("block")]
    found = next(
        one
        for one in layer_group_rows(run, "block", ())
        if (one["phase"], one["note"]) == ("train", "forward")
    )
    assert found["n"] == len(groups)
    of_runs = groups.groupby("cell", observed=True)["forward_s"].mean()
    assert found["mean_s"] == pytest.approx(of_runs.mean())

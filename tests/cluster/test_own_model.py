"""The example of an own model and an own graph, submitted to the real Slurm from its own folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gnnhpc.records.run_paths import RunPaths
from tests.cluster.runs import ROOT, Run, User, losses

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FOLDER = Path(ROOT / "jobs" / "sweeps" / "own-model")


def test_the_example_runs_in_every_layout_and_again_without_its_file(user: User) -> None:
    """Sequential, two stages, two replicas of two stages: one loss, and none is invalid."""
    mine = user.home / "mine"
    shutil.copytree(FOLDER, mine)
    site = user.site({"tasks_per_node": 1})
    wanted = ("--set", "repeats=1", "--set", "train_steps=5", "--set", "seq_microbatches=[2]")
    user.jobs("submit", "own-model.yaml", "--runs", user.runs, *wanted, *site, cwd=mine)
    run = Run(user, RunPaths(user.runs / "own-model"))
    found = {}
    for cell in run.cells:
        result = run.result(cell)
        assert result.valid, [check for check in result.audit if check.verdict == "invalid"]
        layout = cell.experiment.layout
        found[str(layout)] = losses(run.attempt(cell), layout.world_size)
    assert set(found) == {"seq", "pp2", "dp2-pp2"}
    for layout in ("pp2", "dp2-pp2"):
        assert found[layout] == pytest.approx(found["seq"], rel=1e-4)

    # The run folder has the model as it was planned.
    (mine / "deep_gcn.py").unlink()
    user.jobs("rerun", run.paths.root, "--array", "deep_gcn.DeepGcn-seq", "--index", "0", *site)
    again = run.result(run.cell("deep_gcn.DeepGcn-seq"), 2)
    assert again.valid
    assert losses(run.attempt(run.cell("deep_gcn.DeepGcn-seq"), 2), 1) == found["seq"]

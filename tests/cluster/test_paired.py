"""Paired blocks: all layouts of a repeat in one job, on the same nodes, in random order."""

from __future__ import annotations

import csv
import sys

import pytest

from gnnhpc.experiment.manifest import Cell
from jobs.slurm.paired_blocks import read_blocks
from tests.cluster.runs import Run
from tests.cluster.sweeps import Sweeps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def blocks(run: Run) -> dict[int, list[Cell]]:
    """The cells of each block in their order."""
    tasks = read_blocks(run.paths, run.cells).tasks["gat-paired"]
    return {task.number: list(task.cells) for task in tasks}


def test_one_job_runs_a_block_in_its_order_on_the_same_nodes(sweeps: Sweeps) -> None:
    run = sweeps.ended("paired")
    assert len(blocks(run)) == 3
    for number, cells in blocks(run).items():
        results = [run.result(cell) for cell in cells]
        assert {result.status for result in results} == {"done"}, run.explain()
        hosts = {result.layout["name"]: set(result.provenance["hosts"]) for result in results}
        assert hosts["seq"] < hosts["pp2"]
        tasks = {result.provenance["slurm"]["SLURM_ARRAY_TASK_ID"] for result in results}
        assert tasks == {str(number)}
        began = [result.started_at for result in results]
        assert began == sorted(began)
    assert run.attempts() == [1] * len(run.cells)
    assert set(run.states().values()) == {"done"}


def test_speedups_of_blocks_are_taken_from_pairs(sweeps: Sweeps) -> None:
    run = sweeps.ended("paired")
    run.cluster.run(sys.executable, "-m", "analysis", "report", run.paths.root, timeout=600)
    with (run.paths.report / "summary.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["phase"] == "train"]
    found = {row["layout"]: row["speedup_from"] for row in rows}
    assert found == {"seq": "", "pp2": "3 pairs"}


def test_a_cell_that_fails_does_not_stop_its_block(sweeps: Sweeps) -> None:
    run = sweeps.ended("failing")
    assert run.states() == {"gat-seq:0": "done", "gat-seq:1": "done", "gat-pp2:0": "failed"}
    assert "planted in a test" in run.status()[run.cell("gat-pp2").id]["detail"]

"""A sweep on the real Slurm, from submission to report, and parts of it again by hand."""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import RunPaths
from jobs.slurm.paired_blocks import read_blocks
from tests.cluster import config
from tests.cluster.runs import Run, User, losses, wait_for
from tests.cluster.sweeps import PIPELINE, QUOTED, Sweeps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def run(sweeps: Sweeps) -> Run:
    return sweeps.ended(QUOTED)


def digests(folder: Path) -> dict[str, str]:
    """Every file below, with a digest of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_cell_is_done_on_as_many_nodes_as_it_has_ranks(run: Run) -> None:
    assert len(run.cells) == 6
    for cell in run.cells:
        result = run.result(cell)
        hosts, size = result.provenance["hosts"], cell.experiment.layout.world_size
        assert (result.status, result.failure) == ("done", None), cell.id
        assert len(hosts) == len(set(hosts)) == size
        assert sorted(losses(run.attempt(cell), size)) == [0, 1, 2]
    done = run.user.jobs("status", run.paths.root)
    assert (done.returncode, "6 done" in done.stdout) == (0, True)


def test_one_job_array_a_model_and_layout_is_in_the_accounting_and_reported(run: Run) -> None:
    arrays = {cell.array for cell in run.cells}
    assert arrays == {"vig-seq", "vig-pp4", "gat-seq", "gat-pp2", "gat-dp2-pp2"}
    jobs = ",".join(run.job(array) for array in arrays)
    expected = {f"{run.task(cell)}|COMPLETED" for cell in run.cells}
    sacct = ("sacct", "-X", "-n", "-P", "-j", jobs, "-o", "JobID,State")
    wait_for(lambda: set(run.cluster.run(*sacct).stdout.split()) == expected, "the accounting", 30)
    assert run.accounted_tasks() == 6
    run.cluster.run(sys.executable, "-m", "analysis", "report", run.paths.root, timeout=600)
    assert (run.paths.report / "report.html").is_file()


def test_scripts_and_reruns_make_new_attempts_and_overwrite_nothing(
    run: Run, tmp_path: Path
) -> None:
    before = digests(run.paths.cells)
    sbatch = ("sbatch", "--parsable", "--wait", "--time=5")
    run.cluster.run(*sbatch, "--array=1", run.paths.script("gat-seq"), cwd=tmp_path)
    run.user.jobs("rerun", run.paths.root, "--array", "gat-pp2", "--index", "0")
    moved = tmp_path / "moved ünd 'quoted'"
    shutil.copytree(run.paths.root, moved)
    copy = Run(run.user, RunPaths(moved))
    run.cluster.run(*sbatch, moved / "arrays" / "gat-seq.sbatch", cwd=moved / "arrays")
    run.wait_until_idle()

    by_hand, again = run.cell("gat-seq", 1), run.cell("gat-pp2")
    assert run.result(by_hand, 2).status == run.result(again, 2).status == "done", run.logs()
    assert losses(run.attempt(again, 2), 2) == losses(run.attempt(again), 2)
    assert len(run.paths.cell(run.cell("gat-seq", 0).id).attempts()) == 1
    after = digests(run.paths.cells)
    assert {name: after[name] for name in before} == before
    assert [copy.result(copy.cell("gat-seq", index), 2).status for index in (0, 1)] == ["done"] * 2
    assert set(run.states().values()) == {"done"}


def test_ranks_are_bound_as_the_script_says_whatever_the_shell_has(user: User) -> None:
    shows = user.home / "shows"
    shows.write_text('#!/bin/sh\ntaskset -cp $$\nexec "$@"\n')
    shows.chmod(0o755)
    site = {"container": str(shows), "python": sys.executable, "tasks_per_node": 2}
    run = user.submit([PIPELINE], name="bound", site=site | {"exclusive": True})
    leaked = {"SLURM_CPU_BIND": "map_cpu:0", "SLURM_CPU_BIND_TYPE": "map_cpu:"}
    leaked |= {"SLURM_CPU_BIND_LIST": "0", "SLURM_EXPORT_ENV": "NONE", "SRUN_CPUS_PER_TASK": "2"}
    user.cluster.run("sbatch", "--wait", run.paths.script("gat-pp2"), env=leaked)
    run.wait_until_idle()
    logs = sorted(run.paths.logs.glob("gat-pp2-0-*.log"))
    assert len(logs) == 2
    for log in logs:
        lists = re.findall(r"affinity list: (\S+)", log.read_text())
        expected = {"0", "1"} if config.can_bind() else {lists[0]}
        assert (len(lists), set(lists)) == (2, expected), log.read_text()


def test_all_stages_of_a_torchgpipe_replica_are_one_task(sweeps: Sweeps) -> None:
    run = sweeps.ended("torchgpipe")
    tasks = {}
    for cell in run.cells:
        result = run.result(cell)
        assert (result.status, result.failure) == ("done", None), cell.id
        tasks[cell.array] = len(result.provenance["hosts"])
    assert tasks == {"gat-pp4-torchgpipe": 1, "gat-dp2-pp2-torchgpipe": 2}


def test_one_job_runs_a_block_in_its_order_on_the_same_nodes(sweeps: Sweeps) -> None:
    run = sweeps.ended("paired")
    tasks = read_blocks(run.paths, run.cells)["gat-paired"]
    assert len(tasks) == 3
    for task in tasks:
        results = [run.result(cell) for cell in task.cells]
        assert {result.status for result in results} == {"done"}, run.explain()
        hosts = {result.layout["name"]: set(result.provenance["hosts"]) for result in results}
        assert hosts["seq"] < hosts["pp2"]
        numbers = {result.provenance["slurm"]["SLURM_ARRAY_TASK_ID"] for result in results}
        assert numbers == {str(task.number)}
        began = [result.started_at for result in results]
        assert began == sorted(began)
    assert run.attempts() == [1] * len(run.cells)
    assert set(run.states().values()) == {"done"}
    run.cluster.run(sys.executable, "-m", "analysis", "report", run.paths.root, timeout=600)
    with (run.paths.report / "summary.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["phase"] == "train"]
    assert {row["layout"]: row["speedup_from"] for row in rows} == {"seq": "", "pp2": "3 pairs"}


def test_a_cell_that_fails_does_not_stop_its_block_and_says_why(sweeps: Sweeps) -> None:
    run = sweeps.ended("failing")
    assert run.states() == {"gat-seq:0": "done", "gat-seq:1": "done", "gat-pp2:0": "failed"}
    failure = run.result(run.cell("gat-pp2")).failure
    assert failure is not None
    assert (failure.rank, failure.step) == (1, 1)
    assert failure.error == "ValueError: planted in a test"
    assert failure.error in run.status()[run.cell("gat-pp2").id]["detail"]
    assert "Traceback" in run.user.jobs("logs", run.paths.root, "gat-pp2:0").stdout

"""What a real accounting says a run cost, and the job that reports when all others have ended."""

from __future__ import annotations

import json

import pytest
from jobs.cluster.slurm_accounts import ask_sacct

from gnnhpc.records.cost import read_accounted
from tests.cluster.runs import TINY_GAT, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {"layouts": ["seq", "pp2"], "microbatches": [1], "train_steps": 3}


def test_the_report_job_reports_and_says_what_the_run_cost(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = user.submit([GRID], "--report", name="reported", site={"cpus_per_task": 1})
    shown = run.cluster.run("squeue", "-h", "-o", "%j %T %E").stdout.splitlines()
    (waits,) = [line for line in shown if line.startswith("report@reported ")]
    for array in ("gat-seq", "gat-pp2"):
        assert f"afterany:{run.job(array)}_*" in waits
    run.results()
    run.wait_until_idle()
    logs = "\n".join(path.read_text() for path in run.paths.logs.glob("report-*.log"))
    page = run.paths.report / "report.html"
    assert page.is_file(), logs + run.told()
    text = page.read_text()
    assert "2 cells, 2 valid" in text
    assert "core-hours of 2 tasks, as Slurm" in text, logs

    accounted = read_accounted(run.paths)
    assert accounted is not None
    assert (accounted.tasks, accounted.running, accounted.energy_j) == (2, 0, None)
    # A rank of gat-seq and two of gat-pp2, of a CPU each, for some seconds.
    assert accounted.core_s > 0
    assert accounted.efficiency is not None
    assert accounted.efficiency > 0

    def cost() -> dict[str, float]:
        done = user.jobs("status", run.paths.root, "--cost", "--json")
        found: dict[str, float] = json.loads(done.stdout)["cost"]["accounted"]
        return found

    spent = cost()
    for name, value in run.cluster.environment().items():
        monkeypatch.setenv(name, value)
    tasks = ask_sacct({run.job("gat-seq"): "gat-seq", run.job("gat-pp2"): "gat-pp2"})
    assert tasks is not None
    assert sorted(task.task for task in tasks) == sorted(
        f"{run.job(array)}_0" for array in ("gat-seq", "gat-pp2")
    )
    assert {task.cpus for task in tasks} == {1, 2}
    assert sum(task.core_s for task in tasks) == spent["core_s"]
    assert ask_sacct({run.job("gat-seq"): "gat-pp2"}) == []


def test_a_requeued_task_costs_twice(user: User) -> None:
    grid = GRID | {"layouts": ["seq"], "train_steps": 4000}
    run = user.submit([grid], name="requeued", site={"cpus_per_task": 1})
    cell = run.cell("gat-seq")
    run.wait_for_step(cell, 2)
    run.cluster.run("scontrol", "requeue", f"{run.job('gat-seq')}_0")
    run.wait_for_step(cell, 2, number=2)
    user.jobs("cancel", run.paths.root)
    run.wait_until_idle()

    def accounted() -> tuple[int, int]:
        asked = ("status", run.paths.root, "--cost", "--patience", "30", "--json")
        found = json.loads(user.jobs(*asked, check=False).stdout)["cost"]["accounted"]
        return found["tasks"], found["running"]

    wait_for(lambda: accounted() == (2, 0), lambda: f"two starts, not {accounted()}\n{run.told()}")

"""Flags of submit and rerun: what Slurm would say, what to wait for, other limits, other nodes."""

from __future__ import annotations

import signal

import pytest

from gnnhpc.records.schema import read_lines
from tests.cluster import slurm
from tests.cluster.processes import Process
from tests.cluster.runs import TINY_GAT, Run, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {"layouts": ["seq"], "train_steps": 2}
LATER = ("--slurm", "begin=now+1hour")


def cancel(run: Run) -> None:
    run.user.jobs("cancel", run.paths.root)
    run.wait_until_idle()
    assert {cell["state"] for cell in run.status().values()} == {"cancelled"}


def shown(run: Run, array: str = "gat-seq") -> str:
    return run.cluster.run("scontrol", "show", "job", run.job(array)).stdout


def spec(user: User) -> str:
    file = user.home / "spec.yaml"
    file.write_text(
        "name: asked\ngrids:\n  - {models: gat, layouts: [seq, pp2], microbatches: [2], repeats: 3,"
        " data: {name: synthetic-citation, nodes: 40, edges: 160}}\n"
    )
    return str(file)


def test_slurm_says_when_each_array_would_start(user: User) -> None:
    told = ("submit", spec(user), "--runs", user.runs, "--test-only")
    done = user.jobs(*told, *user.site({}))
    first, second = done.stdout.splitlines()
    assert first.startswith("gat-seq (6 cells): Job ")
    assert second.startswith("gat-pp2 (3 cells): Job ")
    assert " to start at 20" in first
    assert "in partition main" in second
    done = user.jobs(*told, *user.site({"cpus_per_task": 3}), check=False)
    assert done.returncode == 2
    refused = "allocation failure: Requested node configuration is not available"
    assert done.stdout.count(refused) == 2, done.stdout + done.stderr
    assert not user.runs.exists()
    assert user.cluster.run("squeue", "-h").stdout == ""


def test_a_submission_waits_for_a_run_or_for_a_job(user: User) -> None:
    first = user.submit([GRID], *LATER, name="first")
    second = user.submit([GRID], "--after", first.paths.root, name="second")
    third = user.submit([GRID], "--after", second.job("gat-seq"), name="third")
    assert f"Dependency=afterany:{first.job('gat-seq')}_*" in shown(second)
    assert f"Dependency=afterany:{second.job('gat-seq')}_*" in shown(third)

    def state() -> tuple[str, str]:
        waiting = second.status()[second.cells[0].id]
        return waiting["state"], waiting["detail"]

    # Until Slurm has looked at a job it gives no reason.
    wait_for(lambda: state() == ("pending", "Dependency"), lambda: f"the reason: {state()}")
    user.jobs("cancel", first.paths.root)
    assert third.result(third.cells[0]).valid
    assert second.result(second.cells[0]).ended_at <= third.result(third.cells[0]).started_at
    third.wait_until_idle()
    told = ("rerun", third.paths.root, "--array", "gat-seq", "--after", first.paths.root)
    done = user.jobs(*told, *LATER)
    assert "has no job in the queue: nothing to wait for" in done.stderr


def test_a_rerun_takes_other_limits_and_says_what_differs(user: User) -> None:
    run = user.submit([GRID], *LATER, name="limits")
    cancel(run)
    flags = ("--time", "0:20:00", "--mem", "300M", "--exclude", "n1,n3", "--slurm", "nice=3")
    done = user.jobs("rerun", run.paths.root, "--array", "gat-seq", *flags)
    assert "note: site test, not as submitted: mem 300M instead of none, " in done.stderr
    assert "time 0:20:00 instead of 00:10:00" in done.stderr
    told = shown(run)
    for word in ("TimeLimit=00:20:00", "MinMemoryNode=300M", "ExcNodeList=n[1,3]", "Nice=3"):
        assert word in told, told
    short = ("--time", "1", "--slurm", "signal=90")
    cancel(run)
    done = user.jobs("rerun", run.paths.root, "--array", "gat-seq", *short, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "time: found 1, and signal 90 s before its end; allowed: more than 90" in done.stderr


def test_a_rerun_leaves_out_the_node_where_a_rank_was_lost(user: User) -> None:
    grid = TINY_GAT | {"layouts": ["pp2"], "microbatches": [2], "train_steps": 100_000}
    run = user.submit([grid], name="lost-rank")
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, 5)
    header = read_lines(attempt.records(1))[0]
    process = Process.of(header["pid"])
    assert process is not None
    assert process in slurm.all_processes(run.cluster.root)
    process.send(signal.SIGKILL)
    run.result(cell)
    run.wait_until_idle()
    assert run.status()[cell.id]["state"] == "failed"
    told = ("rerun", run.paths.root, "--failed", "--exclude-failed", "--exclude", "n4")
    done = user.jobs(*told)
    host = header["host"]
    assert f"note: nodes where a cell failed by their fault: {host}\n" in done.stderr
    records = [run.attempt(cell, 2).records(rank) for rank in (0, 1)]
    wait_for(lambda: all(file.exists() for file in records), f"the rerun\n{run.logs()}")
    excluded = next(
        word for word in shown(run, "gat-pp2").split() if word.startswith("ExcNodeList=")
    )
    assert host[1:] in excluded
    assert "4" in excluded
    hosts = {read_lines(file)[0]["host"] for file in records}
    assert host not in hosts

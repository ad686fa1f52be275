"""Faults that take minutes each, and a soak under random faults: `make nightly`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from jobs.slurm.paired_blocks import read_blocks
from tests.cluster import slurm
from tests.cluster.processes import Process
from tests.cluster.runs import ROOT, TINY_GAT, TINY_VIG, Run, User, losses, planted, steps, wait_for
from tests.cluster.sweeps import EARLY, ENDLESS, LONG, SLOW

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(2400)]

SOAK_S = 60.0 * float(os.environ.get("GNNHPC_SOAK_MIN", "5"))
BETWEEN_S = (2.0, 8.0)
"""Seconds between two random faults."""


def bring_back(run: Run, node: str) -> None:
    """Until the node takes jobs again."""

    def idle() -> bool:
        run.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        shown = run.cluster.run("sinfo", "-h", "-n", node, "-p", "main", "-o", "%T").stdout
        return shown.strip() == "idle"

    wait_for(idle, f"{node} to be idle")


def test_a_cell_on_a_lost_node_resumes_on_another(user: User) -> None:
    run = user.submit([LONG], name="lost-node", site=SLOW)
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, EARLY)
    lost = read_lines(attempt.records(1))[0]["host"]
    silent = slurm.node_processes(run.cluster.root, lost)
    # A node without power closes no connection.
    for process in silent:
        process.send(signal.SIGSTOP)
    try:
        run.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        run.start_requeued(run.task(cell))
        result = run.result(cell, 2)
        assert result.status == "done"
        assert result.resumed_from is not None
        assert lost not in result.provenance["hosts"]
    finally:
        for process in silent:
            process.send(signal.SIGKILL)
        slurm.start_node(run.cluster.root, lost)
        bring_back(run, lost)


def test_a_rerun_leaves_out_the_node_where_a_rank_was_lost(user: User) -> None:
    run = user.submit([ENDLESS], name="lost-rank")
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, 5)
    run.wait_for_step(cell, 5, rank=1)
    header = read_lines(attempt.records(1))[0]
    process = Process.of(header["pid"])
    assert process is not None
    process.send(signal.SIGKILL)
    run.wait_until_idle()
    done = user.jobs("rerun", run.paths.root, "--failed", "--exclude-failed")
    host = header["host"]
    assert f"note: nodes where a rank was lost or hung: {host}\n" in done.stderr
    run.wait_for_step(cell, 1, number=2)
    hosts = {read_lines(run.attempt(cell, 2).records(rank))[0]["host"] for rank in (0, 1)}
    assert host not in hosts


def test_a_cell_that_hears_no_signal_is_timed_out_and_resumes_in_a_rerun(user: User) -> None:
    grid = LONG | {"train_steps": 100_000}
    run = user.submit([grid], name="deaf", site=planted("deaf", "*", EARLY))
    cell = run.cells[0]
    run.wait_for_step(cell, EARLY)
    run.cluster.run("scontrol", "update", f"JobId={run.task(cell)}", "TimeLimit=1")
    run.wait_until_idle()
    assert set(run.states().values()) == {"timed out"}, run.explain()
    user.jobs("rerun", run.paths.root, "--failed", *user.site({}))
    again = run.wait_for_step(cell, EARLY, number=2)
    assert steps(again, 0)[0]["step"] >= 50


def test_a_cell_is_requeued_as_often_as_the_site_allows(user: User) -> None:
    site = planted("slower", 0, 20) | {"signal": 120, "max_requeues": 1}
    run = user.submit([LONG | {"train_steps": 100_000}], name="often", site=site)
    cell = run.cells[0]
    job = run.task(cell)
    for number in (1, 2):
        run.wait_for_step(cell, EARLY, number)
        run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
        if number == 1:
            run.wait_for_requeue(job)
            run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
            run.start_requeued(job)
    run.wait_until_idle()
    state = run.status()[cell.id]
    assert state["state"] == "interrupted"
    assert "max_requeues is 1" in state["detail"]
    assert run.attempts() == [2]


def test_a_cell_that_is_cancelled_while_it_saves_is_not_requeued(user: User) -> None:
    """Slurm queues a job again that ends for its requeue, whether or not it was cancelled."""
    grid = LONG | {"train_steps": 100_000, "repeats": 2}
    run = user.submit([grid], name="cancelled", site=planted("slow", 0, 0))
    for cell in run.cells:
        run.wait_for_step(cell, 1)
    run.cluster.run("scancel", "--signal=USR2", run.job("gat-pp2"))
    wait_for(run.attempt(run.cells[0]).result.exists, "a cell that has saved")
    user.jobs("cancel", run.paths.root)
    assert run.jobs() == []
    assert set(run.states().values()) <= {"cancelled", "interrupted"}


def test_a_cell_that_is_requeued_after_its_result_does_not_run_again(user: User) -> None:
    run = user.submit([TINY_GAT | {"layouts": ["pp2"], "microbatches": [2]}], name="finished")
    cell = run.cells[0]
    run.result(cell)
    run.cluster.run("scontrol", "requeue", run.task(cell))
    run.start_requeued(run.task(cell))
    run.wait_until_idle()
    assert run.attempts() == [1]
    assert "nothing to do, attempt 1 of this job is done and valid" in run.logs()


def test_a_block_that_is_requeued_continues_where_it_was(user: User) -> None:
    grid = LONG | {"layouts": ["seq", "pp2", "dp2-pp2"], "seq_microbatches": [1]}
    run = user.submit([grid], "--paired", name="block", site=planted("slow", 0, 100))
    lines = read_blocks(run.paths).tables["gat-paired"]
    first, second, third = (run.cell(line.array, line.index) for line in lines)
    run.result(first)
    run.wait_for_step(second, 120)
    job = f"{run.job('gat-paired')}_0"
    run.cluster.run("scontrol", "requeue", job)
    run.wait_for_requeue(job)
    shown = run.status()
    assert [shown[c.id]["state"] for c in (first, second, third)] == ["done", "pending", "pending"]
    run.start_requeued(job)
    run.wait_until_idle()
    again = run.result(second, 2)
    assert again.resumed_from is not None
    assert [len(run.paths.cell(c.id).attempts()) for c in (first, second, third)] == [1, 2, 1]
    assert set(run.states().values()) == {"done"}


def test_a_full_disk_fails_the_cell_and_loses_no_step(user: User) -> None:
    user.runs.mkdir()
    user.cluster.run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", user.runs)
    try:
        run = user.submit([ENDLESS], name="full")
        cell = run.cells[0]
        attempt = run.wait_for_step(cell, 5)
        filler = user.runs / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
        run.wait_until_idle()
        for rank in (0, 1):
            found = [line["step"] for line in steps(attempt, rank)]
            assert found == list(range(len(found)))
            assert len(found) > 5
        wait_for(lambda: set(run.states().values()) <= {"failed", "lost"}, "the end", 30)
    finally:
        user.cluster.run("umount", "--lazy", user.runs)


def test_a_custom_model_runs_in_every_layout_and_again_without_its_file(user: User) -> None:
    mine = user.home / "mine"
    mine.mkdir()
    for file in (ROOT / "jobs" / "sweeps" / "own-model").iterdir():
        if file.is_file():
            (mine / file.name).write_bytes(file.read_bytes())
    settings = ("--set", "repeats=1", "--set", "train_steps=5", "--set", "seq_microbatches=[2]")
    user.jobs("submit", "own-model.yaml", "--runs", user.runs, *settings, *user.site({}), cwd=mine)
    run = Run(user, RunPaths(user.runs / "own-model"))
    run.wait_until_idle()
    found = {
        str(cell.experiment.layout): losses(run.attempt(cell), cell.experiment.layout.world_size)
        for cell in run.cells
    }
    for layout in ("pp2", "dp2-pp2"):
        assert found[layout] == pytest.approx(found["seq"], rel=1e-4)
    (mine / "deep_gcn.py").unlink()
    seq = next(cell for cell in run.cells if cell.array.endswith("-seq"))
    user.jobs("rerun", run.paths.root, "--array", seq.array, "--index", "0")
    run.wait_until_idle()
    assert losses(run.attempt(seq, 2), 1) == found["seq"]


def test_random_faults_change_no_result(user: User) -> None:
    """The same sweep runs undisturbed, and under random kills, requeues and drains."""
    shared = {"layouts": ["seq", "pp2"], "microbatches": [2], "seq_microbatches": [2]}
    shared |= {"train_steps": 120, "test_steps": 1, "save_every": 20}
    grids = [TINY_VIG | shared, TINY_GAT | shared]
    calm = user.submit(grids, name="calm")
    calm.wait_until_idle()
    run = user.submit([grid | {"repeats": 3} for grid in grids], name="faulty")
    chance, end = random.Random(3), time.monotonic() + SOAK_S
    while time.monotonic() < end and set(run.states().values()) != {"done"}:
        _disturb(run, chance)
        time.sleep(chance.uniform(*BETWEEN_S))
        if not run.jobs():
            user.jobs("rerun", run.paths.root, "--missing", check=False)
    for node in ("n1", "n2", "n3", "n4"):
        run.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    for _ in range(3):
        run.wait_until_idle()
        user.jobs("rerun", run.paths.root, "--missing", check=False)
    run.wait_until_idle()
    assert set(run.states().values()) == {"done"}, run.explain()
    expected = {cell.array: _final(calm, cell.array) for cell in calm.cells}
    for cell in run.cells:
        if cell.experiment.repeat == 0:
            assert _final(run, cell.array) == expected[cell.array], cell.id


def _final(run: Run, array: str) -> dict[str, object]:
    """What the newest result of an array's first cell says about its training."""
    attempts = run.paths.cell(run.cell(array).id).attempts()
    results = [Result.read(one.result) for one in attempts if one.result.exists()]
    return dict([result for result in results if result.status == "done"][-1].final)


def _disturb(run: Run, chance: random.Random) -> None:
    """Kill a rank, requeue a job, or drain a node and bring another back."""
    fault = chance.choice(["kill", "kill", "requeue", "drain"])
    tasks = [line.split()[1] for line in run.jobs() if line.endswith("RUNNING")]
    if fault == "requeue" and tasks:
        run.cluster.run("scontrol", "requeue", chance.choice(tasks), check=False)
    elif fault == "drain":
        node, other = chance.sample(["n1", "n2", "n3", "n4"], 2)
        drain = ("State=DRAIN", "Reason=soak")
        run.cluster.run("scontrol", "update", f"NodeName={node}", *drain, check=False)
        run.cluster.run("scontrol", "update", f"NodeName={other}", "State=RESUME", check=False)
    elif fault == "kill":
        records = sorted(run.paths.cells.glob("*/attempt-*/rank-*.jsonl"))
        alive = [file for file in records if not (file.parent / "result.json").exists()]
        with contextlib.suppress(IndexError, KeyError):
            process = Process.of(read_lines(chance.choice(alive))[0]["pid"])
            if process in slurm.all_processes(run.cluster.root):
                assert process is not None
                process.send(signal.SIGKILL)

"""Requeue, preemption, time limits and lost nodes: the cell goes on, bitwise where it was."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.schema import Result, read_lines
from tests.cluster import slurm
from tests.cluster.runs import LONG_S, TINY_GAT, Run, User, losses, planted, steps, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS = 400
GRID = TINY_GAT | {
    "layouts": ["pp2"],
    "microbatches": [2],
    "train_steps": STEPS,
    "save_every": 50,
}
EARLY = 60
"""A step past the first checkpoint, and well before the end."""


@pytest.fixture(scope="module")
def undisturbed(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same cell, left in peace."""
    user = User(cluster, tmp_path_factory.mktemp("undisturbed"))
    run = user.submit([GRID], name="undisturbed")
    assert run.result(run.cells[0]).status == "done"
    run.wait_until_idle()
    return run


def shown(run: Run, job: str) -> str:
    return run.cluster.run("scontrol", "show", "job", job).stdout


def wait_for_requeue(run: Run, job: str) -> None:
    def requeued() -> bool:
        told = shown(run, job)
        return "Restarts=0" not in told and "JobState=PENDING" in told

    wait_for(requeued, lambda: f"the requeue of job {job}\n{run.told()}", LONG_S)


def expedite(run: Run, job: str) -> None:
    """Until Slurm has started a requeued job once more.

    It holds the job back for two minutes, which it calls BeginTime, and again if a node was not
    ready for it; each time this lets it go at once, but not within the second in which its first
    start was ended: a node counts in whole seconds, takes the new start for one that was revoked
    with the old, and Slurm lets such a job fail ("Job credential revoked").
    """
    time.sleep(1)
    update = ("scontrol", "update", f"JobId={job}", "StartTime=now")

    def started() -> bool:
        told = shown(run, job)
        if "Reason=BeginTime" in told:
            run.cluster.run(*update, check=False)
        return "JobState=PENDING" not in told

    wait_for(started, lambda: f"job {job} to start again\n{run.told()}", LONG_S)


def went_on(run: Run, undisturbed: Run) -> Result:
    """The second attempt's result, once it is sure that nothing was lost, doubled or changed."""
    cell = run.cells[0]
    result = run.result(cell, 2)
    assert result.status == "done"
    assert result.resumed_from is not None
    start = result.resumed_from["step"]
    assert start >= 50
    first, second = run.attempt(cell, 1), run.attempt(cell, 2)
    for rank in (0, 1):
        before = [line["step"] for line in steps(first, rank)]
        assert before == list(range(len(before)))
        assert len(before) >= start
        assert [line["step"] for line in steps(second, rank)] == list(range(start, STEPS))
    twin = undisturbed.attempt(undisturbed.cells[0])
    expected = losses(twin, 2)
    assert losses(second, 2) == {step: expected[step] for step in range(start, STEPS)}
    known = losses(first, 2)
    assert known == {step: expected[step] for step in known}
    assert result.final == Result.read(twin.result).final
    events = [line for line in read_lines(second.records(0)) if line["kind"] == "event"]
    assert "resumed" in {event["name"] for event in events}
    run.wait_until_idle()
    assert run.status()[cell.id]["state"] == "done"
    assert len(run.paths.cell(cell.id).attempts()) == 2
    return result


def task(run: Run, cell: Cell) -> str:
    """Slurm's name of the cell's array task."""
    return f"{run.job(cell.array)}_{cell.index}"


def test_a_requeued_cell_goes_on_bitwise(user: User, undisturbed: Run) -> None:
    run = user.submit([GRID], name="requeued")
    cell = run.cells[0]
    run.wait_for_step(cell, EARLY)
    job = task(run, cell)
    run.cluster.run("scontrol", "requeue", job)
    wait_for_requeue(run, job)
    expedite(run, job)
    result = went_on(run, undisturbed)
    assert int(result.provenance["slurm"]["SLURM_RESTART_COUNT"]) >= 1


def test_a_cell_requeued_after_its_result_is_not_computed_again(user: User) -> None:
    """By Slurm; whoever asks for it gets it computed once more."""
    run = user.submit([GRID], name="finished")
    cell = run.cells[0]
    assert run.result(cell).valid
    job = task(run, cell)
    run.cluster.run("scontrol", "requeue", job)
    wait_for_requeue(run, job)
    expedite(run, job)
    run.wait_until_idle()
    assert [attempt.number for attempt in run.paths.cell(cell.id).attempts()] == [1]
    assert f"{cell.id}: nothing to do, attempt 1 of this job is done and valid" in run.logs()
    assert run.status()[cell.id]["state"] == "done"
    user.jobs("rerun", run.paths.root, "--array", "gat-pp2", *user.site({}))
    assert run.result(cell, 2).valid
    run.wait_until_idle()
    assert len(run.paths.cell(cell.id).attempts()) == 2


def test_a_preempted_cell_goes_on_bitwise(user: User, undisturbed: Run) -> None:
    run = user.submit([GRID], name="preempted", site={"partition": "preemptible"})
    cell = run.cells[0]
    run.wait_for_step(cell, EARLY)
    job = task(run, cell)
    urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null")
    run.cluster.run("sbatch", *urgent, "--wrap", "true")
    wait_for_requeue(run, job)
    expedite(run, job)
    went_on(run, undisturbed)
    attempt = run.attempt(cell, 1)
    assert Result.read(attempt.result).status == "interrupted"


def test_a_cell_told_of_its_time_limit_goes_on_bitwise(user: User, undisturbed: Run) -> None:
    run = user.submit([GRID], name="limit", site=planted("slow", 0, 20) | {"signal": 120})
    cell = run.cells[0]
    run.wait_for_step(cell, EARLY)
    job = task(run, cell)
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    wait_for_requeue(run, job)
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    expedite(run, job)
    went_on(run, undisturbed)
    stopped, result = (Result.read(run.attempt(cell, number).result) for number in (1, 2))
    assert stopped.status == "interrupted"
    verdicts = {check.name: check.verdict for check in stopped.audit}
    assert verdicts["last self-check"] == "ok", "there is a minute for the checks of an end"
    assert "invalid" not in verdicts.values()
    assert "cut-short" not in result.flags


def test_a_cell_that_is_cancelled_while_it_asks_for_its_requeue_stays_so(user: User) -> None:
    """Slurm lets a job that ends for its requeue wait in the queue again, scancel or not."""
    grid = GRID | {"layouts": ["seq"], "microbatches": [1], "train_steps": 100_000, "repeats": 4}
    run = user.submit([grid], name="cancelled", site=planted("slow", 0, 0))
    for cell in run.cells:
        run.wait_for_step(cell, 1)
    run.cluster.run("scancel", "--signal=USR2", run.job("gat-seq"))
    wait_for(run.attempt(run.cells[0]).result.exists, "a cell that has saved")
    user.jobs("cancel", run.paths.root)
    assert not run.cluster.run("squeue", "-h").stdout
    assert {state["state"] for state in run.status().values()} <= {"cancelled", "interrupted"}


def test_a_cell_goes_back_into_the_queue_as_often_as_the_site_lets_it(user: User) -> None:
    site = planted("slower", 0, 20) | {"signal": 120, "max_requeues": 1}
    run = user.submit([GRID | {"train_steps": 100_000}], name="often", site=site)
    cell = run.cells[0]
    job = task(run, cell)
    for number in (1, 2):
        run.wait_for_step(cell, EARLY, number)
        run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
        if number == 1:
            wait_for_requeue(run, job)
            run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
            expedite(run, job)
    run.result(cell, 2)
    run.wait_until_idle()
    state = run.status()[cell.id]
    assert state["state"] == "interrupted"
    assert "requeued 1 times already, and max_requeues is 1: a rerun resumes" in state["detail"]
    assert len(run.paths.cell(cell.id).attempts()) == 2


def test_a_cell_on_a_lost_node_goes_on_from_its_checkpoint(user: User, undisturbed: Run) -> None:
    run = user.submit([GRID], name="lost-node")
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, EARLY)
    job = task(run, cell)
    lost = read_lines(attempt.records(1))[0]["host"]
    silent = slurm.node_processes(run.cluster.root, lost)
    # Silent, as a node without power is: nobody there closes a connection.
    for process in silent:
        process.send(signal.SIGSTOP)
    try:
        run.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        wait_for_requeue(run, job)
        expedite(run, job)
        result = went_on(run, undisturbed)
        assert lost not in result.provenance["hosts"]
    finally:
        for process in silent:
            process.send(signal.SIGKILL)
        slurm.start_node(run.cluster.root, lost)
        bring_back(run, lost)


def bring_back(run: Run, node: str) -> None:
    """Until the node takes jobs again."""

    def idle() -> bool:
        run.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        shown = run.cluster.run("sinfo", "-h", "-n", node, "-p", "main", "-o", "%T").stdout
        return shown.strip() == "idle"

    wait_for(idle, f"{node} to be idle")


def test_a_cell_that_hears_nothing_is_timed_out_and_rerun(user: User) -> None:
    grid = GRID | {"train_steps": 100_000}
    run = user.submit([grid], name="deaf", site=planted("deaf", "*", EARLY))
    cell = run.cells[0]
    run.wait_for_step(cell, EARLY)
    job = task(run, cell)
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    run.wait_until_idle()
    state = run.status()[cell.id]
    assert state["state"] == "timed out", f"{state}\n{run.told()}"
    user.jobs("rerun", run.paths.root, "--failed", *user.site({}))
    again = run.wait_for_step(cell, EARLY, number=2)
    assert steps(again, 0)[0]["step"] >= 50
    user.jobs("cancel", run.paths.root)
    run.wait_until_idle()
    assert run.status()[cell.id]["state"] in ("cancelled", "interrupted")


def test_a_drained_node_finishes_its_cell_and_gets_no_other(user: User) -> None:
    run = user.submit([GRID], name="drained")
    cell = run.cells[0]
    attempt = run.wait_for_step(cell, EARLY)
    drained = read_lines(attempt.records(0))[0]["host"]
    run.cluster.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    try:
        assert run.result(cell).status == "done"
        run.wait_until_idle()
        user.jobs("rerun", run.paths.root, "--array", "gat-pp2", *user.site({}))
        second = run.result(cell, 2)
        assert second.status == "done"
        assert drained not in second.provenance["hosts"]
        assert second.resumed_from is None
    finally:
        bring_back(run, drained)

"""Requeues, preemption, time limits and faults of real ranks under the real Slurm.

What Slurm interrupts resumes from its checkpoint, bit for bit; `status` says why others failed.
"""

from __future__ import annotations

import pytest

from gnnhpc.records.schema import read_lines
from tests.cluster.runs import Run, losses, steps, wait_for
from tests.cluster.sweeps import STEPS, Sweeps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

INTERRUPTED = ("preempted", "requeued", "limited", "lost-node", "out-of-time")


@pytest.mark.parametrize("name", INTERRUPTED)
def test_it_resumes_with_the_same_numbers_and_no_step_is_lost(sweeps: Sweeps, name: str) -> None:
    run, undisturbed = sweeps.ended(name), sweeps.ended("undisturbed")
    result, reference = run.result(run.cells[0], 2), undisturbed.result(undisturbed.cells[0])
    assert (result.status, reference.status) == ("done", "done"), run.explain()
    assert result.resumed_from is not None
    start = result.resumed_from["step"]
    first, second = (run.attempt(run.cells[0], number) for number in (1, 2))
    for rank in (0, 1):
        before = [line["step"] for line in steps(first, rank)]
        assert before == list(range(len(before)))
        assert len(before) >= start >= 50
        assert [line["step"] for line in steps(second, rank)] == list(range(start, STEPS))
    expected = losses(undisturbed.attempt(undisturbed.cells[0]), 2)
    assert losses(first, 2) == {step: expected[step] for step in losses(first, 2)}
    assert losses(second, 2) == {step: expected[step] for step in range(start, STEPS)}
    assert result.final == reference.final
    assert run.attempts() == [2]
    assert set(run.states().values()) == {"done"}


def test_what_else_shows_of_them(sweeps: Sweeps) -> None:
    """A requeued task costs both of its starts, and a cell of a lost node goes on elsewhere."""
    run = sweeps.ended("requeued")
    wait_for(lambda: run.accounted_tasks() == 2, "both starts in the accounting", 30)
    run = sweeps.ended("lost-node")
    lost = read_lines(run.attempt(run.cells[0], 1).records(1))[0]["host"]
    assert lost not in run.result(run.cells[0], 2).provenance["hosts"]


def test_what_is_not_started_again(sweeps: Sweeps) -> None:
    """A cell that is cancelled while it saves, and one that is requeued after its result."""
    assert set(sweeps.ended("cancelled").states().values()) <= {"cancelled", "interrupted"}
    run = sweeps.ended("finished")
    assert run.attempts() == [1]
    assert "nothing to do, attempt 1 of this job is done and valid" in run.logs()


def state(run: Run) -> tuple[str, str]:
    found = run.status()[run.cells[0].id]
    return found["state"], found["detail"] or ""


def test_a_killed_rank_is_named_and_the_next_cell_runs(sweeps: Sweeps) -> None:
    run = sweeps.ended("killed")
    result = run.result(run.cells[0])
    assert result.failure is not None
    assert (result.failure.rank, result.failure.host) == (1, result.provenance["hosts"][1])
    kind, detail = state(run)
    assert kind == "failed"
    assert "rank 1" in detail
    assert run.result(run.cells[1]).status == "done"
    for rank in (0, 1):
        found = [line["step"] for line in steps(run.attempt(run.cells[0]), rank)]
        assert found == list(range(len(found)))
        assert len(found) > 5


def test_a_frozen_rank_is_named(sweeps: Sweeps) -> None:
    run = sweeps.ended("frozen")
    result = run.result(run.cells[0])
    assert result.status == "failed"
    assert result.failure is not None
    assert result.failure.rank == 1, result.failure


def test_a_set_up_line_that_fails_is_the_cause(sweeps: Sweeps) -> None:
    kind, detail = state(sweeps.ended("set-up"))
    words = "set-up line 'echo no disk; false' failed with status 1: no disk"
    assert (kind, detail.strip()) == ("failed", words)


def test_a_rank_over_its_memory_is_the_cause(sweeps: Sweeps) -> None:
    run = sweeps.ended("hog")
    kind, detail = state(run)
    assert kind == "out of memory", detail
    assert "exceeded memory limit" in detail
    done = run.user.jobs("status", run.paths.root, check=False)
    assert "--failed --mem SIZE, with more memory" in done.stdout
    log = run.user.jobs("logs", run.paths.root, "gat-pp2:0").stdout
    assert "exceeded memory limit" in log
    run.user.jobs("rerun", run.paths.root, "--failed", "--slurm", "mem=3500M")
    run.wait_until_idle()
    assert run.states() == {"gat-pp2:0": "done"}, run.explain()

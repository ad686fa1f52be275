"""Requeue, preemption and time limits: the cell resumes from its checkpoint, bit for bit."""

from __future__ import annotations

import pytest

from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from tests.cluster.runs import Run, losses, steps, wait_for
from tests.cluster.sweeps import STEPS, Sweeps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

INTERRUPTED = ("preempted", "requeued", "limited", "lost-node", "out-of-time")


@pytest.fixture(scope="module")
def undisturbed(sweeps: Sweeps) -> Run:
    run = sweeps.ended("undisturbed")
    assert run.result(run.cells[0]).status == "done", run.explain()
    return run


def second(run: Run) -> Result:
    result = run.result(run.cells[0], 2)
    assert result.status == "done", run.explain()
    return result


@pytest.mark.parametrize("name", INTERRUPTED)
def test_it_resumes_with_the_same_numbers(sweeps: Sweeps, undisturbed: Run, name: str) -> None:
    run = sweeps.ended(name)
    cell, result = run.cells[0], second(run)
    assert result.resumed_from is not None
    start = result.resumed_from["step"]
    assert start >= 50
    reference = undisturbed.attempt(undisturbed.cells[0])
    expected = losses(reference, 2)
    before, after = losses(run.attempt(cell, 1), 2), losses(run.attempt(cell, 2), 2)
    assert before == {step: expected[step] for step in before}
    assert after == {step: expected[step] for step in range(start, STEPS)}
    assert result.final == Result.read(reference.result).final


@pytest.mark.parametrize("name", INTERRUPTED)
def test_no_step_is_lost_or_doubled(sweeps: Sweeps, name: str) -> None:
    run = sweeps.ended(name)
    result = second(run)
    assert result.resumed_from is not None
    start = result.resumed_from["step"]
    for rank in (0, 1):
        before = [line["step"] for line in steps(run.attempt(run.cells[0], 1), rank)]
        after = [line["step"] for line in steps(run.attempt(run.cells[0], 2), rank)]
        assert before == list(range(len(before)))
        assert len(before) >= start
        assert after == list(range(start, STEPS))
    assert run.attempts() == [2]
    assert set(run.states().values()) == {"done"}


def test_a_requeued_task_costs_both_of_its_starts(sweeps: Sweeps) -> None:
    run = sweeps.ended("requeued")
    wait_for(lambda: run.accounted_tasks() == 2, "both starts in the accounting", 30)


def test_a_cell_of_a_lost_node_goes_on_elsewhere(sweeps: Sweeps) -> None:
    run = sweeps.ended("lost-node")
    lost = read_lines(run.attempt(run.cells[0], 1).records(1))[0]["host"]
    assert lost not in second(run).provenance["hosts"]


def test_a_cell_that_is_cancelled_while_it_saves_is_not_requeued(sweeps: Sweeps) -> None:
    run = sweeps.ended("cancelled")
    assert set(run.states().values()) <= {"cancelled", "interrupted"}


def test_a_cell_that_is_requeued_after_its_result_does_not_run_again(sweeps: Sweeps) -> None:
    run = sweeps.ended("finished")
    assert run.attempts() == [1]
    assert "nothing to do, attempt 1 of this job is done and valid" in run.logs()

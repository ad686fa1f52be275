"""Faults of real ranks under the real Slurm: the cell ends, and its status names the cause."""

from __future__ import annotations

import pytest

from tests.cluster.runs import Run, steps
from tests.cluster.sweeps import Sweeps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def state(run: Run, number: int = 0) -> tuple[str, str]:
    found = run.status()[run.cells[number].id]
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


def test_records_of_a_killed_cell_have_every_step_once(sweeps: Sweeps) -> None:
    run = sweeps.ended("killed")
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


def test_an_exception_reaches_status_and_logs(sweeps: Sweeps) -> None:
    run = sweeps.ended("raises")
    failure = run.result(run.cells[0]).failure
    assert failure is not None
    assert (failure.rank, failure.step) == (1, 4)
    assert failure.error == "ValueError: planted in a test"
    assert "planted in a test" in state(run)[1]
    log = run.user.jobs("logs", run.paths.root, "gat-pp2:0").stdout
    assert "Traceback" in log


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


def test_a_set_up_line_that_fails_is_the_cause(sweeps: Sweeps) -> None:
    run = sweeps.ended("set-up")
    kind, detail = state(run)
    assert kind == "failed"
    assert "set-up line 'module load gcc/99' failed with status" in detail
    assert run.attempts() == [0] * len(run.cells)
    assert "gcc/99" in run.user.jobs("logs", run.paths.root, "gat-seq:0").stdout

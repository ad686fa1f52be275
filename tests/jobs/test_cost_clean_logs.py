"""What a run cost, what `clean` removes, and the logs of a cell."""

from __future__ import annotations

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.schema import Check, Failure
from jobs.cli.terminal_tables import cost_lines
from jobs.run import logs
from jobs.run.clean import clean, find_removable
from jobs.run.cost import run_cost
from jobs.run.logs import find_log
from jobs.run.run_state import read_run
from jobs.slurm.accounting import cpu_seconds
from tests.jobs.conftest import MadeRun
from tests.jobs.fake_slurm import FakeSlurm, account


def test_the_accounting_says_what_a_run_cost(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_accounts(account("101_0"), account("101_1", "RUNNING", seconds=20))
    accounted = run_cost(read_run(run.root)).accounted
    assert accounted is not None
    assert (accounted.tasks, accounted.running, accounted.core_s) == (2, 1, 60)
    assert accounted.efficiency == pytest.approx(15 / 20)


def test_a_requeued_task_costs_both_starts_and_others_nothing(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    other = account("102_0", array="other")
    never = account("101_1", "CANCELLED by 0", seconds=0)
    slurm.set_accounts(account("101_0", "NODE_FAIL", seconds=5), account("101_0"), other, never)
    accounted = run_cost(read_run(run.root)).accounted
    assert accounted is not None
    assert (accounted.tasks, accounted.core_s) == (2, 30)


def test_without_the_accounting_results_say_what_a_run_cost(run: MadeRun, slurm: FakeSlurm) -> None:
    run.finish(run.cell(), job="101_0")
    run.begin(run.cell(index=1), 3, "101_1")
    cost = run_cost(read_run(run.root))
    assert (cost.accounted, cost.recorded_core_s) == (None, 120.0)
    assert (cost.attempts, cost.unknown) == (1, 1)
    (line,) = cost_lines(cost)
    assert line.startswith("cost: 0.0333 core-hours of 1 attempts")
    assert line.endswith("1 attempts without a result")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784.0), ("02:03:04", 7384.0), ("03:04.500", 184.5), ("00:00", None)],
)
def test_processor_time_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert cpu_seconds(text) == seconds


def test_clean_removes_the_checkpoints_of_done_cells(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    attempts = [
        run.finish(run.cell(), audit=[Check("edges", "invalid", "")]),
        run.finish(run.cell()),
        run.finish(run.cell(), status="interrupted"),
    ]
    for attempt in attempts:
        attempt.checkpoints.mkdir()
        (attempt.checkpoints / "step-5").write_bytes(b"x" * 5000)
    found = find_removable(run.root)
    assert found == [attempt.checkpoints for attempt in attempts[:2]]
    assert clean(run.root, found) == 2
    assert [attempt.checkpoints.exists() for attempt in attempts] == [False, False, True]
    assert all(attempt.records(0).exists() for attempt in attempts)


@pytest.mark.parametrize("silent", [False, True])
def test_clean_leaves_a_run_alone_whose_cells_may_run(
    run: MadeRun, slurm: FakeSlurm, silent: bool
) -> None:
    if silent:
        slurm.fail("squeue")
        slurm.fail("sacct")
    with pytest.raises(InputError, match=r"found .*, and 3 more such cells; allowed: a run whose"):
        find_removable(run.root)


def test_logs_are_those_of_the_rank_that_failed_first(run: MadeRun, slurm: FakeSlurm) -> None:
    cell = run.cell("gat-pp2")
    attempt = run.begin(cell, 2)
    for rank in (0, 1):
        attempt.log(rank).write_text(f"rank {rank}\n")
    assert find_log(run.root, cell.id, None) == attempt.log(0)
    write_failure(attempt, Failure(1, "n2", 2, "train", "boom", utc_now()), by=1)
    assert find_log(run.root, "gat-pp2:0", None) == attempt.log(1)
    assert find_log(run.root, cell.id[:-2], 0) == attempt.log(0)


def test_the_log_of_the_job_is_shown_where_no_rank_began(run: MadeRun, slurm: FakeSlurm) -> None:
    with pytest.raises(InputError, match="no log of gat-seq 0; allowed: a cell that was started"):
        find_log(run.root, "gat-seq:0", None)
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text("error: no module\n")
    assert find_log(run.root, "gat-seq:0", None) == log


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        ("gat-seq:9", None, "CELL: found 'gat-seq:9'"),
        ("g", None, "which 4 cells begin with"),
        ("gat-seq:0", 1, "--rank: found 1; allowed: 0 to 0"),
    ],
)
def test_a_log_that_there_is_not(run: MadeRun, name: str, rank: int | None, words: str) -> None:
    with pytest.raises(InputError) as caught:
        find_log(run.root, name, rank)
    assert words in str(caught.value)


def test_follow_shows_the_end_of_the_logs_of_a_cell_that_is_done(
    run: MadeRun, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "READ_S", 0.0)
    slurm.set_queue()
    cell, shown = run.cell(), []
    run.finish(cell, job="101_0").log(0).write_text("".join(f"step {n}\n" for n in range(20)))
    assert logs.follow(run.paths, cell, None, shown.append).state == "done"
    assert shown == [f"0: step {n}" for n in range(10, 20)]

"""What a run cost, what `clean` removes, and the logs of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.schema import Check, Failure
from jobs.cli import main
from jobs.run import logs
from jobs.run.clean import clean, find_removable
from tests.jobs.conftest import FakeSlurm, MadeRun


def test_what_a_run_cost(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    def cost() -> str:
        main(["status", str(run.root), "--cost"])
        return next(line for line in capsys.readouterr().out.splitlines() if "cost" in line)

    run.finish(run.cell(), job="101_0")
    run.begin(run.cell(index=1), 3, "101_1")
    assert cost() == "cost: unknown, since sacct says nothing of these jobs"
    for state in ("NODE_FAIL", "COMPLETED"):
        slurm.account("101_0", state, seconds=1800)
    slurm.account("101_1", "RUNNING", seconds=3600)
    slurm.account("102_1", "CANCELLED", seconds=0)
    assert cost() == "cost: 4 core-hours of 3 tasks, 1 of them running"


def test_clean_removes_the_checkpoints_of_done_cells(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.silent = True
    with pytest.raises(InputError, match=r"found 4 cells that run, wait or may; allowed: a run wh"):
        find_removable(run.root)
    slurm.silent = False
    slurm.queue.clear()
    attempts = [
        run.finish(run.cell(), audit=[Check("edges", "invalid", "")]),
        run.finish(run.cell()),
        run.finish(run.cell(), status="interrupted"),
    ]
    for attempt in attempts:
        attempt.checkpoints.mkdir()
        (attempt.checkpoints / "step-5").write_bytes(b"x" * 5000)
    assert main(["clean", str(run.root)]) == 0
    assert all(attempt.checkpoints.exists() for attempt in attempts)
    assert clean(run.root) == [attempt.checkpoints for attempt in attempts[:2]]
    assert [attempt.checkpoints.exists() for attempt in attempts] == [False, False, True]
    assert all(attempt.records(0).exists() for attempt in attempts)


def test_logs_are_those_of_the_rank_that_failed_first(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> Path:
        assert main(["logs", str(run.root), *arguments]) == 0
        return Path(capsys.readouterr().err.strip())

    cell = run.cell("gat-pp2")
    for name, rank, words in (
        (cell.id, "0", "no log of gat-pp2 0; allowed: a cell that was started"),
        ("gat-seq:9", "0", "CELL: found 'gat-seq:9'; allowed: a cell's id or array:index"),
        ("gat-seq:0", "1", "--rank: found 1; allowed: 0 to 0"),
    ):
        assert main(["logs", str(run.root), name, "--rank", rank]) == 2
        assert words in capsys.readouterr().err
    log = run.paths.logs / "gat-pp2-0-102.log"
    log.write_text("error: no module\n")
    capsys.readouterr()
    assert shown("gat-pp2:0") == log
    attempt = run.begin(cell, 2)
    for rank in (0, 1):
        attempt.log(rank).write_text(f"rank {rank}\n")
    assert shown(cell.id) == attempt.log(0)
    write_failure(attempt, Failure(1, "n2", 2, "train", "boom", utc_now()), by=1)
    assert shown("gat-pp2:0") == attempt.log(1)
    assert shown(cell.id, "--rank", "0") == attempt.log(0)


def test_follow_shows_the_end_of_the_logs_of_a_cell_that_is_done(
    run: MadeRun, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "READ_S", 0.0)
    slurm.queue.clear()
    cell, shown = run.cell(), list[str]()
    run.finish(cell, job="101_0").log(0).write_text("".join(f"step {n}\n" for n in range(20)))
    assert logs.follow(run.paths, cell, None, shown.append).state == "done"
    assert shown == [f"0: step {n}" for n in range(10, 20)]

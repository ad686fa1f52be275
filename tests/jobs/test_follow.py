"""`logs --follow`: new lines of all ranks as they come, until the cell has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Failure, Result
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.folder.attempt_files import read_manifest_entries
from jobs.folder.growing_logs import GrowingLog, offset_of_last_lines
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import plan
from jobs.state.follow_cell import FollowedCell
from tests.jobs.test_run_status import begin, finish

ROOT = Path(__file__).parents[2]
GRID = {"models": "gat", "data": "synthetic-citation", "layouts": "pp2"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """One cell of two ranks, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    one = plan({"name": "run", "grids": [GRID]})
    return create_run_folder(one, tmp_path / "run", Launch(live=True))


@pytest.fixture
def cell(run: RunPaths) -> Cell:
    return read_manifest(run.manifest)[0]


def write(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)


def started(run: RunPaths, cell: Cell) -> AttemptPaths:
    """An attempt that this very process makes, so that it runs."""
    attempt = run.cell(cell.id).claim_attempt()
    begin(attempt, cell, 1)
    return attempt


def followed(run: RunPaths, rank: int | None = None, lines: int = 10) -> FollowedCell:
    return FollowedCell(run, read_manifest_entries(run.manifest)[0], rank, lines)


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "log")
    assert log.new_lines() == []
    write(log.path, "a\nb\nhal")
    assert log.new_lines() == ["a", "b"]
    write(log.path, "f\n\n\xe9")
    assert log.new_lines() == ["half", ""]
    assert log.new_lines() == []
    assert log.new_lines(ended=True) == ["\xe9"]
    assert log.new_lines(ended=True) == []


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("count", [0, 1, 5, 40_000])
@pytest.mark.parametrize("wanted", [0, 1, 2, 5, 30_000])
def test_the_last_lines_of_a_file_of_any_length(
    tmp_path: Path, count: int, wanted: int, end: str
) -> None:
    path = tmp_path / "log"
    lines = [f"line {number}" for number in range(count)]
    path.write_text("\n".join(lines) + (end if lines else ""))
    rest = path.read_bytes()[offset_of_last_lines(path, wanted) :].decode()
    assert rest.splitlines() == lines[len(lines) - min(wanted, count) :]


def test_ranks_and_job_are_told_apart_and_a_newer_attempt_is_followed(
    run: RunPaths, cell: Cell
) -> None:
    write(run.logs / "gat-pp2-0-17.log", "set up\n")
    seen = followed(run)
    assert seen.new_lines() == ["job: set up"]
    attempt = started(run, cell)
    write(attempt.log(1), "one\n")
    write(attempt.log(0), "zero\nuncomp")
    assert seen.new_lines() == ["0: zero", "1: one"]
    write(attempt.log(0), "leted\n")
    second = run.cell(cell.id).claim_attempt()
    write(second.log(0), "again\n")
    assert seen.new_lines() == ["0: uncompleted", "0: again"]
    assert seen.attempt == 2


def test_one_rank_alone_begins_with_its_last_lines(run: RunPaths, cell: Cell) -> None:
    attempt = started(run, cell)
    for rank in (0, 1):
        write(attempt.log(rank), "a\nb\nc\n")
    assert followed(run, rank=1, lines=2).new_lines() == ["1: b", "1: c"]


def test_a_cell_that_has_ended_shows_its_last_lines_and_how(
    run: RunPaths, cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = started(run, cell)
    write(attempt.log(0), "a\nb\nno line break")
    finish(attempt, cell)
    follow = ["logs", str(run.root), "--array", "gat-pp2", "--index", "0", "--follow"]
    assert main([*follow, "--lines", "1"]) == 0
    said = capsys.readouterr()
    assert said.out == "0: no line break\n"
    assert said.err == "note: gat-pp2 0, attempt 1: done\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--follow"], "found no cell, or two; allowed: CELL, or --array with --index"),
        (["gat-pp2:0", "--index", "0"], "found no cell, or two"),
        (["--array", "gat-pp2", "--index", "7", "--follow"], "CELL: found 'gat-pp2:7'"),
        (["gat-pp2:0", "--follow", "--rank", "2"], "--rank: found 2; allowed: 0 to 1"),
        (["gat-pp2:0", "--follow", "--attempt", "1"], "--attempt: found --follow beside it"),
    ],
)
def test_a_mistake_is_one_line(
    run: RunPaths, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", str(run.root), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_the_last_lines_of_one_log(
    run: RunPaths, cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    write(started(run, cell).log(0), "a\nb\nc\n")
    assert main(["logs", str(run.root), "gat-pp2:0", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "b\nc\n"


class Follower:
    """`jobs logs --follow` in a process of its own, and what it has printed."""

    def __init__(self, run: Path, cell: str, folder: Path) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                # A shell starts what runs in its background with interrupts ignored.
                ["/usr/bin/env", "--default-signal=INT",
                 sys.executable, "-m", "jobs", "logs", str(run), cell, "--follow"],
                cwd=ROOT, stdout=out, stderr=err,
            )  # fmt: skip

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        """Until what was printed fulfils the condition, or the process has ended."""
        while not condition(self.out.read_text()) and self.process.poll() is None:
            time.sleep(0.1)
        assert condition(self.out.read_text()), self.err.read_text()


@pytest.fixture
def follower(run: RunPaths, tmp_path: Path) -> Any:
    made = Follower(run.root, "gat-pp2:0", tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.wait()


@pytest.fixture
def attempt(run: RunPaths, cell: Cell) -> AttemptPaths:
    """An attempt that runs, with one line in its log."""
    one = started(run, cell)
    write(one.log(0), "first\n")
    return one


def test_it_follows_until_the_cell_has_ended(
    run: RunPaths, cell: Cell, attempt: AttemptPaths, follower: Follower
) -> None:
    follower.wait_for(lambda said: said == "0: first\n")
    write(attempt.log(1), "second\n")
    follower.wait_for(lambda said: "1: second\n" in said)
    assert follower.process.poll() is None
    write(attempt.log(0), "last\n")
    failure = Failure(1, "n2", 3, "train", "ValueError: loss is nan", "")
    finish(attempt, cell, status="failed", failure=failure)
    assert follower.process.wait() == 1
    assert follower.out.read_text() == "0: first\n1: second\n0: last\n"
    assert follower.err.read_text().splitlines() == [
        "note: gat-pp2 0, attempt 1: running",
        "note: gat-pp2 0, attempt 1: failed: rank 1 on n2, train step 3: ValueError: loss is nan",
    ]


def test_an_interrupt_ends_it_without_a_traceback(
    attempt: AttemptPaths, follower: Follower
) -> None:
    follower.wait_for(lambda said: said == "0: first\n")
    follower.process.send_signal(signal.SIGINT)
    assert follower.process.wait() == 130
    assert "Traceback" not in follower.err.read_text()


@pytest.mark.slow
@pytest.mark.distributed
def test_real_ranks_are_followed_to_their_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
    grid = {"models": "gat", "data": [graph], "chunks": "halo", "microbatches": 2}
    spec = {"name": "real", "grids": [grid | {"layouts": "pp2"}]}
    done = jobs.submit(jobs.plan(spec), cluster="local", runs=tmp_path, live=True)
    assert main(["logs", str(done.run), "gat-pp2:0", "--follow", "--lines", "1000"]) == 0
    result = Result.read(next(done.run.glob("cells/*/attempt-1/result.json")))
    assert result.valid
    said = capsys.readouterr()
    lines = said.out.splitlines()
    printed = [line.removeprefix("0: ") for line in lines if line.startswith("0: ")]
    log = next(done.run.glob("cells/*/attempt-1/rank-0000.log")).read_text()
    # A rank may say more once its result is there.
    assert printed == log.splitlines()[: len(printed)]
    assert any(line.startswith("train step 10 of 10") for line in printed)
    assert said.err.splitlines()[-1].startswith("note: gat-pp2 0, attempt 1: done")


def test_this_process_is_the_one_that_runs(run: RunPaths, cell: Cell) -> None:
    """What the tests above rely on."""
    assert f'"pid": {os.getpid()}' in started(run, cell).records(0).read_text()

"""A sweep on this machine: real ranks through submitit, results, reruns, interruption."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import submitit

import jobs
from analysis.cli import main as analysis
from gnnhpc.core.errors import EXIT_INTERRUPTED, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.local_cells import LocalCell, LocalLimits
from jobs.actions.local_executor import send_cells, start_supervisor
from jobs.actions.local_turns import VARIABLE, check_turns, ranks_lock_file
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import read_submissions

GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
GRID: dict[str, Any] = {"models": "gat", "data": [GRAPH], "chunks": "halo", "microbatches": 2}

pytestmark = pytest.mark.distributed


def spec(**keys: Any) -> dict[str, Any]:
    return {"name": "run", "defaults": {"train_steps": 3}, "grids": [GRID | keys]}


def wait_until(true: Callable[[], object]) -> None:
    patience = time.monotonic() + 120
    while not true():
        assert time.monotonic() < patience
        time.sleep(0.1)


def test_a_sweep_runs_and_parts_of_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GNNHPC_THREADS", raising=False)
    before = dict(os.environ)
    plan = jobs.plan(spec(layouts=["seq", "pp2"], seq_microbatches=2))
    site = ("here", jobs.Site(cpus_per_task=2))
    finished = jobs.submit(plan, cluster="local", runs=tmp_path, wait=True, site=site)
    run = finished.run
    assert finished.failed == 0
    assert dict(os.environ) == before
    for records in run.glob("cells/*/attempt-1/rank-*.jsonl"):
        assert '"threads": 2' in records.read_text().splitlines()[0]
    assert jobs.status(run).counts() == {"done": 2}
    assert (run / ".submitit").stat().st_mode & 0o077 == 0
    assert {entry.cluster for entry in read_submissions(RunPaths(run))} == {"local"}
    assert main(["logs", str(run), "gat-pp2:0", "--rank", "1"]) == 0
    capsys.readouterr()

    again = ["rerun", str(run), "--array", "gat-pp2", "--index", "0"]
    # Where it was submitted: here, with or without a Slurm.
    assert main([*again, "--wait"]) == 0
    out = capsys.readouterr().out
    assert "[1/1] gat-pp2 0: done" in out
    assert "1 done, 0 failed" in out

    # A log that cannot be written, as on a full disk, hides no result.
    (run / "logs").rename(run / "before")
    (run / "logs").touch()
    assert main([*again, "--wait"]) == 0
    assert "local" in (line := capsys.readouterr().err)
    assert line.endswith(".log: cannot be written (File exists)\n")
    tries = {cell.array: cell.attempts for cell in jobs.status(run).cells}
    assert tries == {"gat-seq": 1, "gat-pp2": 3}

    assert main(["rerun", str(run), "--missing", "--cluster", "local"]) == 2
    assert "no cell to run again (2 done)" in capsys.readouterr().err

    assert analysis(["report", str(run)]) == 0
    secret = RunPaths(run).secret
    text = secret.read_bytes().strip()
    written = [path for path in run.rglob("*") if path.is_file() and path != secret]
    assert [path for path in written if text in path.read_bytes()] == []
    assert text.decode() not in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_larger_spec_adds_its_new_cells_alone(tmp_path: Path) -> None:
    first = jobs.submit(jobs.plan(spec(microbatches=1)), cluster="local", runs=tmp_path, wait=True)
    larger = jobs.plan(spec(microbatches=1, seeds=[1, 0]))
    more = jobs.submit(larger, cluster="local", runs=tmp_path, wait=True, extend_run=True)
    assert [(cell.index, cell.experiment.seed) for cell in more.cells] == [(1, 1)]
    known = jobs.status(first.run)
    assert known.counts() == {"done": 2}
    assert all(cell.attempts == 1 for cell in known.cells)


def test_a_failed_cell_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of two cells cannot write: where its folder should be is a file."""
    plan = jobs.plan(spec(seeds=[0, 1], microbatches=1))
    paths = create_run_folder(plan, tmp_path / "run", Launch())
    paths.cell(plan.cells[0].id).root.write_text("in the way")
    rerun = ["rerun", str(paths.root), "--missing", "--cluster", "local", "--wait"]
    assert main(rerun) == 1
    out = capsys.readouterr().out
    assert "1 done, 1 failed" in out
    assert "gat-seq 0: failed before it had an attempt: see logs/gat-seq-0-*.log" in out
    assert jobs.status(paths.root).counts() == {"done": 1, "missing": 1}


def test_a_disk_that_fills_between_two_cells_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three cells is done, the others were not tried: status says the same."""
    start, started = submitit.LocalExecutor.submit, []

    def fill(executor: Any, task: Any) -> Any:
        started.append(task)
        if len(started) > 1:
            raise OSError(28, "No space left on device")
        return start(executor, task)

    monkeypatch.setattr(submitit.LocalExecutor, "submit", fill)
    plan = jobs.plan(spec(seeds=[0, 1, 2], microbatches=1))
    run = create_run_folder(plan, tmp_path / "run", Launch()).root
    assert main(["rerun", str(run), "--missing", "--cluster", "local", "--wait"]) == 1
    printed = capsys.readouterr()
    assert "[1/3] gat-seq 0: done" in printed.out
    line = f"failed: gat-seq 1: cannot be started, {run}: No space left on device; "
    line += "not tried: this cell and 1 more; then python -m jobs rerun "
    assert printed.err == f"{line}{run} --missing\n"
    assert jobs.status(run).counts() == {"done": 1, "missing": 2}


def test_a_run_left_alone_says_in_its_log_that_a_cell_cannot_be_started(tmp_path: Path) -> None:
    plan = jobs.plan(spec(microbatches=1))
    paths = create_run_folder(plan, tmp_path / "run", Launch())
    # No folder can be made where a file is.
    (paths.root / ".submitit").touch()
    process = start_supervisor(paths)
    cells = [LocalCell.from_cell(cell) for cell in plan.cells]
    send_cells(process, cells, LocalLimits.of_launch(Launch(), paths))
    assert process.wait() != 0
    (log,) = paths.logs.glob("supervisor-*.log")
    assert len(log.read_text().splitlines()) == 1
    assert log.read_text().startswith(f"error: {paths.root}/.submitit: found File exists; ")


@pytest.mark.slow
def test_a_run_left_alone_can_be_watched_and_cancelled(tmp_path: Path) -> None:
    plan = jobs.plan(spec(train_steps=100_000, seeds=[0, 1], microbatches=1))
    run = jobs.submit(plan, cluster="local", runs=tmp_path).run
    try:
        wait_until(lambda: any(cell.step for cell in jobs.status(run).cells))
        first, second = jobs.status(run).cells
        assert (first.state, second.state) == ("running", "pending")
        assert first.step_s is not None
        assert first.eta_s is not None
    finally:
        ended = jobs.cancel(run)
    assert [what.startswith("local supervisor") for what in ended] == [True]
    assert not jobs.status(run).live
    assert jobs.status(run).counts()["missing"] == 1
    assert jobs.cancel(run) == []


@pytest.mark.slow
def test_local_runs_of_one_machine_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "turns.lock"))
    plan = jobs.plan(spec(train_steps=100_000, microbatches=1))
    first = jobs.submit(plan, cluster="local", runs=tmp_path).run
    try:
        wait_until(lambda: jobs.status(first).cells[0].step)
        short = jobs.plan(spec(microbatches=1) | {"name": "second"})
        second = jobs.submit(short, cluster="local", runs=tmp_path).run
        time.sleep(5)
        (waits,) = jobs.status(second).cells
        assert (waits.state, waits.detail) == ("pending", "waits for its turn")
    finally:
        jobs.cancel(first)
    wait_until(lambda: not jobs.status(second).live)
    assert jobs.status(second).counts() == {"done": 1}


@pytest.mark.slow
def test_ranks_are_waited_for_though_their_supervisor_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "turns.lock"
    monkeypatch.setenv(VARIABLE, str(lock))
    check_turns()
    with Path(ranks_lock_file()).open("rb") as controllers:
        fcntl.flock(controllers, fcntl.LOCK_SH)
        run = jobs.submit(jobs.plan(spec(microbatches=1)), cluster="local", runs=tmp_path).run
        time.sleep(3)
        assert jobs.status(run).cells[0].state == "pending"
    wait_until(lambda: not jobs.status(run).live)
    assert jobs.status(run).counts() == {"done": 1}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("turns.lock*")} == {0o644}


def test_a_lock_that_cannot_be_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere" / "lock"))
    plan = jobs.plan(spec(microbatches=1))
    with pytest.raises(InputError, match=r"GNNHPC_LOCAL_LOCK: found .*No such file"):
        jobs.submit(plan, cluster="local", runs=tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_thread_may_submit_and_wait(tmp_path: Path) -> None:
    """As a notebook's."""
    plan = jobs.plan(spec(microbatches=1))
    with ThreadPoolExecutor() as threads:
        submitted = threads.submit(jobs.submit, plan, cluster="local", runs=tmp_path, wait=True)
    assert submitted.result().failed == 0


def test_ctrl_c_lets_the_ranks_save(tmp_path: Path) -> None:
    """A terminal sends it to all processes in front."""
    paths = create_run_folder(
        jobs.plan(spec(train_steps=100_000, microbatches=1)), tmp_path / "run", Launch()
    )
    # A shell lets what it starts in the background ignore it, and so it may be with the tests.
    listens = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"import signal, sys; {listens}; from jobs.cli import main; sys.exit(main(sys.argv[1:]))"
    rerun = [sys.executable, "-c", code, "rerun", str(paths.root), "--missing"]
    process = subprocess.Popen(
        [*rerun, "--cluster", "local", "--wait"],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: jobs.status(paths.root).cells[0].step)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == EXIT_INTERRUPTED
    stays = f"note: {paths.root} stays, with what its cells have done: ask for its status"
    assert err.splitlines() == [stays]
    assert jobs.status(paths.root).counts() == {"interrupted": 1}


@pytest.mark.slow
def test_a_copy_of_a_run_folder_cancels_nothing_of_the_first(tmp_path: Path) -> None:
    plan = jobs.plan(spec(train_steps=100_000, microbatches=1))
    run = jobs.submit(plan, cluster="local", runs=tmp_path).run
    try:
        wait_until(lambda: jobs.status(run).cells[0].step)
        copied = shutil.copytree(run, tmp_path / "copied", symlinks=True)
        assert jobs.cancel(copied) == []
        assert jobs.status(run).cells[0].state == "running"
    finally:
        assert len(jobs.cancel(run)) == 1


def test_ranks_end_with_their_controller(tmp_path: Path) -> None:
    """The next cell of the run would be measured beside them."""
    plan = jobs.plan(spec(train_steps=100_000, microbatches=1))
    run = jobs.submit(plan, cluster="local", runs=tmp_path).run
    (submission,) = read_submissions(RunPaths(run))
    try:
        wait_until(lambda: jobs.status(run).cells[0].step)
        children = Path(f"/proc/{submission.job_id}/task/{submission.job_id}/children")
        (controller,) = children.read_text().split()
        os.kill(int(controller), signal.SIGKILL)
        wait_until(lambda: not jobs.status(run).live)
    finally:
        jobs.cancel(run)
    (cell,) = jobs.status(run).cells
    assert cell.state == "lost"


@pytest.mark.slow
def test_a_cell_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    """Or the next cell that is run on this machine would be measured beside it."""
    plan = jobs.plan(spec(train_steps=100_000, layouts=["pp2"], microbatches=2))
    run = jobs.submit(plan, cluster="local", runs=tmp_path).run
    (submission,) = read_submissions(RunPaths(run))
    try:
        wait_until(lambda: jobs.status(run).cells[0].step)
    finally:
        os.kill(int(submission.job_id), signal.SIGKILL)
    wait_until(lambda: not jobs.status(run).live)
    (cell,) = jobs.status(run).cells
    assert cell.state == "interrupted"
    assert cell.detail == "stopped by a signal; rerun goes on from its checkpoint"

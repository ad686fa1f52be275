"""What status makes of folders, of the queue's words, and of the lack of either."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.provenance import user
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Check, Failure, Header, Result, StepRecord
from jobs.actions import local_executor
from jobs.actions.local_cells import LocalCell
from jobs.actions.local_executor import record_if_none_began
from jobs.actions.rerun import rerun, select_cells
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob, answer_file, parse_sacct
from jobs.folder.log_files import find_log
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import record_submission
from jobs.printing.status_table import next_command
from jobs.spec.planning import plan
from jobs.state import run_reading
from jobs.state.run_reading import read_run
from jobs.state.run_status import RunStatus, status
from jobs.state.states import CellStatus

EARLIER = "2026-01-01T00:00:00+00:00"
GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "seeds": [0, 1]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Four cells in two arrays, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    one = plan({"name": "run", "defaults": {"train_steps": 10}, "grids": [GRID]})
    return create_run_folder(one, tmp_path / "run", Launch())


def cell(run: RunPaths, number: int = 0) -> Cell:
    return read_manifest(run.manifest)[number]


def attempt(run: RunPaths, one: Cell) -> AttemptPaths:
    return run.cell(one.id).claim_attempt()


def finish(paths: AttemptPaths, one: Cell, **changes: Any) -> None:
    values: dict[str, Any] = {
        "cell": one.id, "attempt": paths.number, "status": "done", "experiment": {}, "layout": {},
        "provenance": {}, "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:00+00:00", "train_steps": 10, "test_steps": 1,
        "samples_per_step": 5,
    }  # fmt: skip
    Result(**values | changes).write(paths.result)


def begin(paths: AttemptPaths, one: Cell, steps: int, **changes: Any) -> None:
    """Rank 0's records up to a step, the last line cut short as a dead rank leaves it."""
    values: dict[str, Any] = {
        "cell": one.id, "attempt": 1, "rank": 0, "replica": 0, "stage": 0, "world_size": 1,
        "host": socket.gethostname(), "pid": os.getpid(), "cpu_model": "", "cpus": 1, "threads": 1,
        "device": "cpu", "layers": [], "parameters": 1, "started_at": "",
    }  # fmt: skip
    lines = [json.dumps(asdict(Header(**values | changes)))]
    for step in range(steps):
        record = StepRecord("train", step, 0, False, 0.0, 2.0, 0, 0, 0, 0, 0, 0, 0.5, 10)
        lines.append(json.dumps(asdict(record)))
    paths.records(0).write_text("\n".join(lines) + '\n{"kind": "st')


def only(run: RunPaths, number: int = 0) -> CellStatus:
    return status(run.root).cells[number]


def test_a_run_that_was_never_submitted_is_missing(run: RunPaths) -> None:
    known = status(run.root)
    assert known.counts() == {"missing": 4}
    assert not known.live


def test_a_result_is_done(run: RunPaths) -> None:
    one = cell(run)
    finish(attempt(run, one), one)
    assert (only(run).state, only(run).attempts, only(run).step) == ("done", 1, 10)


def test_an_invalid_result_is_flagged_and_a_suspect_one_is_done(run: RunPaths) -> None:
    one, other = cell(run), cell(run, 1)
    finish(attempt(run, one), one, audit=[Check("edges", "invalid", "lost"), Check("a", "ok", "")])
    finish(attempt(run, other), other, audit=[Check("noisy", "suspect", "")])
    assert (only(run).state, only(run).flags) == ("flagged", ("edges",))
    assert (only(run, 1).state, only(run, 1).flags) == ("done", ("noisy",))


def test_a_result_whose_records_are_cut_or_gone_is_failed(run: RunPaths) -> None:
    one = cell(run)
    paths = attempt(run, one)
    begin(paths, one, 4)
    size = paths.records(0).stat().st_size
    finish(paths, one, records={"rank-0000.jsonl": {"size": size, "sha256": ""}})
    assert only(run).state == "done"
    os.truncate(paths.records(0), size - 1)
    told = f"rank-0000.jsonl: found {size - 1} bytes, allowed: the {size} that result.json tells"
    assert (only(run).state, only(run).detail) == ("failed", told)
    paths.records(0).unlink()
    assert only(run).detail == "rank-0000.jsonl: no such file, though result.json names it"


def test_a_job_that_measured_its_cell_twice_is_told(run: RunPaths) -> None:
    """As jobs did that were requeued after their result, before they looked for it."""
    one = cell(run)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    for job in (task, task | {"SLURM_ARRAY_JOB_ID": "8"}):
        for _ in range(2):
            finish(attempt(run, one), one, provenance={"slurm": job})
    found = only(run)
    assert (found.state, found.attempt) == ("done", 4)
    assert found.detail == "attempt 3 of the same job is valid too, the newer counts"
    finish(attempt(run, one), one, provenance={"slurm": task | {"SLURM_ARRAY_JOB_ID": "9"}})
    assert only(run).detail is None


def test_an_interrupted_cell_says_why(run: RunPaths) -> None:
    one, other = cell(run), cell(run, 1)
    failure = Failure(0, "n1", None, None, "requeued 5 times already", "")
    finish(attempt(run, one), one, status="interrupted", failure=failure)
    finish(attempt(run, other), other, status="interrupted")
    assert "requeued 5 times already" in (only(run).detail or "")
    assert only(run, 1).detail == "stopped by a signal; rerun goes on from its checkpoint"


def test_a_failure_is_told_by_rank_host_step_and_cause(run: RunPaths) -> None:
    one = cell(run)
    failure = Failure(1, "n2", 3, "train", "ValueError: loss is\nnan", "")
    finish(attempt(run, one), one, status="failed", failure=failure)
    assert only(run).state == "failed"
    assert only(run).detail == "rank 1 on n2, train step 3: ValueError: loss is nan"


def test_a_failure_without_a_result_is_the_first_ranks_own_words(run: RunPaths) -> None:
    one = cell(run, 1)
    paths = attempt(run, one)
    echo = Failure(0, "n1", 2, "train", "Connection closed by peer", "2026-01-01T00:00:01")
    cause = Failure(1, "n2", 2, "train", "MemoryError", "2026-01-01T00:00:02")
    for failure in (echo, cause):
        paths.failure(failure.rank).write_text(json.dumps(asdict(failure)))
    age(paths)
    assert only(run, 1).state == "failed"
    assert only(run, 1).detail == "rank 1 on n2, train step 2: MemoryError"


def age(paths: AttemptPaths) -> None:
    """As if nothing had been written for an hour."""
    for path in [*paths.root.iterdir(), paths.root]:
        os.utime(path, (time.time() - 3600,) * 2)


def test_a_live_process_is_running_with_its_step_and_what_is_left(run: RunPaths) -> None:
    one = cell(run)
    begin(attempt(run, one), one, 4)
    found = only(run)
    assert (found.state, found.step, found.steps) == ("running", 4, 10)
    assert found.step_s == 2.5
    assert found.eta_s == 15.0


def test_a_dead_process_without_a_result_is_lost(run: RunPaths) -> None:
    one = cell(run)
    # No process has this id: it is above what Linux gives.
    begin(attempt(run, one), one, 4, pid=2**22 + 1)
    assert (only(run).state, only(run).step) == ("lost", 4)


def test_of_a_cell_of_this_machine_slurm_is_not_spoken_of(run: RunPaths) -> None:
    """As after `cancel` of a local run."""
    gone = 2**22 + 1
    begin(attempt(run, cell(run)), cell(run), 4, pid=gone)
    assert only(run).detail == "no result; Slurm says nothing"
    record_submission(run, "local", "gat-seq", [0, 1], str(gone), Launch())
    assert (only(run).state, only(run).detail) == ("lost", "no result of its ranks on this machine")


def test_what_has_ended_does_not_run_though_its_supervisor_does(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it runs other cells; an attempt from before the submission says nothing."""
    one = cell(run)
    first = attempt(run, one)
    begin(first, one, 4, pid=2**22 + 1)
    monkeypatch.setattr(run_reading, "supervisor_is_alive", lambda _: True)
    age(first)
    record_submission(run, "local", "gat-seq", [0, 1], str(os.getpid()), Launch())
    assert (only(run).state, only(run).detail) == ("pending", "waits for its turn")
    later = attempt(run, one)
    begin(later, one, 4)
    assert only(run).state == "running"
    begin(later, one, 4, pid=2**22 + 1)
    assert only(run).state == "lost"


def test_a_measured_cell_that_is_run_again_runs(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cell(run)
    finish(attempt(run, one), one)
    monkeypatch.setattr(run_reading, "supervisor_is_alive", lambda _: True)
    record_submission(run, "local", "gat-seq", [0], str(os.getpid()), Launch())
    assert only(run).state == "pending"
    begin(attempt(run, one), one, 4)
    assert (only(run).state, only(run).step) == ("running", 4)


def test_a_local_cell_that_has_just_begun_may_run_without_its_supervisor(run: RunPaths) -> None:
    """Its ranks have no records yet; a second start beside it would measure both wrongly."""
    record_submission(run, "local", "gat-seq", [0, 1], str(2**22 + 1), Launch())
    begun = attempt(run, cell(run))
    assert (only(run).state, only(run).detail) == ("running", "starting")
    local = LocalCell.from_cell(cell(run))
    # What its supervisor does where it is not killed.
    record_if_none_began(run, local, begun.number, "cancelled before its ranks began")
    assert only(run).state == "running"
    record_if_none_began(run, local, 0, "cancelled before its ranks began")
    assert only(run).state == "failed"
    assert "cancelled before its ranks began" in (only(run).detail or "")
    begun.failure(0).unlink()
    age(begun)
    assert only(run).state == "lost"


def test_a_full_disk_that_takes_no_failure_ends_no_other_cell(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    begun = attempt(run, cell(run))
    monkeypatch.setattr(local_executor, "write_failure", fill)
    record_if_none_began(run, LocalCell.from_cell(cell(run)), 0, "its ranks ended")
    failure = begun.failure(0)
    assert capsys.readouterr().err == f"{failure}: cannot be written (No space left on device)\n"


def test_on_a_laptop_a_silent_attempt_of_elsewhere_is_lost(run: RunPaths) -> None:
    one = cell(run)
    paths = attempt(run, one)
    begin(paths, one, 4, host="n1")
    assert only(run).state == "running"
    age(paths)
    assert only(run).state == "lost"


def test_the_newest_valid_attempt_counts(run: RunPaths) -> None:
    one = cell(run)
    finish(attempt(run, one), one)
    finish(attempt(run, one), one, status="failed")
    found = only(run)
    assert (found.state, found.attempt, found.attempts) == ("done", 1, 2)
    assert found.detail == "attempt 2 is not valid"


@pytest.mark.parametrize("changes", [{"cell": "another"}, {"attempt": 1}])
def test_a_result_of_another_attempt_or_cell_decides_as_in_a_report(
    changes: dict[str, Any], run: RunPaths
) -> None:
    """What the cell measured last is not known, though an earlier attempt was valid."""
    one = cell(run)
    finish(attempt(run, one), one)
    finish(attempt(run, one), one, **changes)
    whose = {"cell": one.id, "attempt": 2} | changes
    told = f"result.json: found that of attempt {whose['attempt']} of {whose['cell']}"
    assert (only(run).state, only(run).detail) == ("failed", told)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 99}'])
def test_a_damaged_result_is_a_failure_that_says_so(text: str, run: RunPaths) -> None:
    one = cell(run)
    attempt(run, one).result.write_text(text)
    found = only(run)
    assert found.state == "failed"
    assert "result.json" in str(found.detail)


def test_a_copied_folder_is_read_where_it_lies(run: RunPaths, tmp_path: Path) -> None:
    one = cell(run)
    finish(attempt(run, one), one)
    shutil.copytree(run.root, tmp_path / "copy of it")
    assert status(tmp_path / "copy of it").counts() == {"done": 1, "missing": 3}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"version": 7}', '{"version": 1}'])
def test_a_damaged_manifest_is_named(line: str, run: RunPaths) -> None:
    with run.manifest.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=r"manifest.jsonl:5: "):
        status(run.root)


def answered(run: RunPaths, *jobs: QueuedJob, **ended: str) -> None:
    """Leave an answer of Slurm's in the cache, as if it had been asked a moment ago."""
    # Whoever asks finds squeue, so that the answer is looked for, and never runs it.
    squeue = Path(os.environ["PATH"]) / "squeue"
    if not squeue.is_symlink():
        squeue.symlink_to("/bin/false")
    kept = answer_file(run.root, [user()])
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(asdict(QueueAnswer(time.time(), jobs, ended))))


def job(indices: str, state: str, **changes: str) -> QueuedJob:
    values = {"reason": "None", "name": "gat-seq@run", "script": "", "comment": ""} | changes
    return QueuedJob("17", indices, state, **values)


def test_queued_cells_are_pending_with_slurms_reason(run: RunPaths) -> None:
    record_submission(run, "slurm", "gat-seq", [0, 1], "17", Launch())
    answered(run, job("0", "RUNNING"), job("1%1", "PENDING", reason="JobArrayTaskLimit"))
    known = status(run.root)
    states = {(c.array, c.index): (c.state, c.detail, c.job) for c in known.cells}
    assert states["gat-seq", 0] == ("running", "starting", "17_0")
    assert states["gat-seq", 1] == ("pending", "JobArrayTaskLimit", "17_1")
    assert states["gat-pp2", 0] == ("missing", None, None)
    assert known.live


@pytest.mark.parametrize("ended_at", ["2026-01-01T00:01:00+00:00", "2126-01-01T00:00:00+00:00"])
@pytest.mark.parametrize("cluster", [{}, {"SLURM_CLUSTER_NAME": "lab"}])
def test_a_result_is_its_own_jobs_whatever_the_clocks_of_nodes_say(
    cluster: dict[str, str], ended_at: str, run: RunPaths
) -> None:
    one = cell(run)
    slurm = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0", **cluster}
    failure = Failure(0, "n1", 3, "train", "MemoryError", "")
    changes = {"status": "failed", "failure": failure, "provenance": {"slurm": slurm}}
    finish(attempt(run, one), one, ended_at=ended_at, **changes)
    record_submission(run, "slurm", "gat-seq", [0], "17", Launch())
    for state in ("RUNNING", "COMPLETING"):
        answered(run, job("0", state))
        assert only(run).state == "failed"
    record_submission(run, "slurm", "gat-seq", [0], "20", Launch())
    answered(run, replace(job("0", "RUNNING"), job_id="20"))
    assert only(run).state == "running"


@pytest.mark.slow
def test_an_interrupted_cell_runs_until_its_job_has_left_the_queue(run: RunPaths) -> None:
    """Its ranks ask for another start after their result, and take a while to make an attempt."""
    one = cell(run)
    slurm = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}
    finish(attempt(run, one), one, status="interrupted", provenance={"slurm": slurm})
    record_submission(run, "slurm", "gat-seq", [0], "17", Launch())
    for state in ("RUNNING", "COMPLETING"):
        answered(run, job("0", state), **{"17_0": "PREEMPTED"})
        assert only(run).state == "running"
        assert only(run).detail == "interrupted, and its job has not ended"
        with pytest.raises(InputError, match="no cell to run again"):
            rerun(run.root, failed=True, cluster="local")
    answered(run, job("0", "PENDING", reason="BeginTime"))
    assert (only(run).state, only(run).detail) == ("pending", "BeginTime")
    finish(attempt(run, one), one, status="interrupted", provenance={"slurm": slurm})
    line = json.loads(run.submissions.read_text())
    run.submissions.write_text(json.dumps(line | {"at": EARLIER}) + "\n")
    answered(run)
    assert only(run).state == "interrupted"


def test_what_another_hosts_supervisor_may_come_to_is_unknown(run: RunPaths) -> None:
    """While its ranks write; whether it still runs cannot be seen from here."""
    record_submission(run, "local", "gat-seq", [0, 1], str(os.getpid()), Launch())
    line = json.loads(run.submissions.read_text())
    run.submissions.write_text(json.dumps(line | {"host": "n1", "at": EARLIER}) + "\n")
    begin(attempt(run, cell(run)), cell(run), 4, host="n1")
    said = f"process {os.getpid()} on n1 may come to it: ask there"
    found = {(c.array, c.index): (c.state, c.detail) for c in status(run.root).cells}
    assert found["gat-seq", 0][0] == "running"
    assert found["gat-seq", 1] == ("unknown", said)
    assert found["gat-pp2", 0] == ("missing", None)
    age(run.cell(cell(run).id).attempts()[-1])
    found = {(c.array, c.index): (c.state, c.detail) for c in status(run.root).cells}
    assert found["gat-seq", 0][0] == "lost"
    assert found["gat-seq", 1] == ("missing", None)


def test_why_cells_may_never_begin_is_told(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    record_submission(run, "slurm", "gat-seq", [0, 1], "17", Launch())
    answered(run, job("0-1", "PENDING", reason="DependencyNeverSatisfied"))
    assert main(["status", str(run.root)]) == 3
    said = capsys.readouterr().out
    assert "pending: 2 cells wait, Slurm says DependencyNeverSatisfied" in said
    answered(run, job("0-1", "PENDING", reason="Priority"))
    assert main(["status", str(run.root)]) == 3
    assert "cells wait" not in capsys.readouterr().out


def test_jobs_of_whoever_asks_are_asked_for_beside_the_submitters(run: RunPaths) -> None:
    record_submission(run, "slurm", "gat-seq", [0], "17", Launch())
    line = json.loads(run.submissions.read_text())
    run.submissions.write_text(json.dumps(line | {"user": "someone"}) + "\n")
    assert read_run(run.root).users == {"someone", user()}


@pytest.mark.parametrize("by", ["script", "comment"])
def test_jobs_submitted_by_hand_are_found(by: str, run: RunPaths) -> None:
    place = run.script("gat-pp2") if by == "script" else run.root
    answered(run, job("1", "PENDING", name="gat-pp2@run", **{by: str(place)}))
    known = status(run.root)
    assert [(c.array, c.index) for c in known.cells if c.state == "pending"] == [("gat-pp2", 1)]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("TIMEOUT", "timed out"),
        ("PREEMPTED", "preempted"),
        ("OUT_OF_MEMORY", "out of memory"),
        ("CANCELLED", "cancelled"),
        ("NODE_FAIL", "lost"),
        ("COMPLETED", "lost"),
    ],
)
def test_ended_jobs_are_told_in_words(word: str, state: str, run: RunPaths) -> None:
    one = cell(run)
    begin(
        attempt(run, one), one, 3, host="n1",
        slurm={"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"},
    )  # fmt: skip
    answered(run, **{"17_0": word})
    assert only(run).state == state


def test_a_cell_submitted_after_slurm_was_asked_is_pending(run: RunPaths) -> None:
    answered(run)
    record_submission(run, "slurm", "gat-seq", [0], "17", Launch())
    assert (only(run).state, only(run).detail) == ("pending", "just submitted")


def test_slurm_is_asked_once_in_ten_seconds(run: RunPaths, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/bash\necho call >>'{calls}'\n")
    squeue.chmod(0o755)
    record_submission(run, "slurm", "gat-seq", [0, 1], "17", Launch())
    for _ in range(5):
        status(run.root)
    assert calls.read_text() == "call\n"


def test_a_slurm_that_does_not_answer_is_named_and_not_needed(
    run: RunPaths, tmp_path: Path
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/bash\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n")
    squeue.chmod(0o755)
    record_submission(run, "slurm", "gat-seq", [0, 1], "17", Launch())
    assert status(run.root).slurm == "slurm_load_jobs error: Unable to contact"


def test_sacct_is_read_with_its_steps_and_ranges() -> None:
    lines = ["5_0|COMPLETED|a@run", "5_0.batch|COMPLETED|batch", "5_1|FAILED|a@run"]
    lines += ["5_1.0|OUT_OF_MEMORY|python", "5_[2-3%1]|CANCELLED by 0|a@run", "6|TIMEOUT|mine"]
    # Under an id of ours lies another's job.
    lines += ["7_0|RUNNING|theirs", "7_0.0|RUNNING|a@run"]
    text = "\n".join(lines).replace("|", "\x1f")
    assert parse_sacct(text, {"5": "a", "6": None, "7": "a"}) == {
        "5_0": "COMPLETED", "5_1": "OUT_OF_MEMORY", "5_2": "CANCELLED", "5_3": "CANCELLED",
        "6": "TIMEOUT",
    }  # fmt: skip


def states(*names: str) -> list[CellStatus]:
    return [
        CellStatus(f"c{n}", "a-seq" if n % 2 == 0 else "a-pp2", n // 2, name)
        for n, name in enumerate(names)
    ]


def test_rerun_selects_by_state() -> None:
    cells = states("done", "failed", "lost", "missing", "running", "pending", "timed out")
    assert [c.state for c in select_cells(cells, failed=True)] == ["failed", "lost", "timed out"]
    assert [c.state for c in select_cells(cells, missing=True)] == [
        "failed", "lost", "missing", "timed out",
    ]  # fmt: skip
    assert [c.state for c in select_cells(cells, missing=True, array="a-pp2")] == [
        "failed",
        "missing",
    ]


def test_rerun_selects_by_index() -> None:
    cells = states("done", "done", "done", "done")
    assert [c.cell for c in select_cells(cells, array="a-seq", indices=[1])] == ["c2"]
    assert [c.cell for c in select_cells(cells, array="a-pp2")] == ["c1", "c3"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({}, "rerun: found no cell selected; allowed: --index"),
        ({"array": "b"}, "--array: found 'b'; allowed: a-pp2, a-seq"),
        ({"indices": [0]}, "--index: found no --array; allowed: --array with a-pp2, a-seq"),
        ({"indices": [5], "array": "a-seq"}, "--index: found 5; allowed: 0-1"),
        ({"indices": [0], "array": "a-seq", "failed": True}, "--index: found a state beside it"),
        ({"indices": [1], "array": "a-seq"}, "rerun: found a-seq 1, which is running; allowed"),
    ],
)
def test_rerun_refuses_what_cannot_be_meant(flags: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        select_cells(states("done", "done", "running", "done"), **flags)
    assert str(caught.value).startswith(line)


def test_logs_are_of_the_first_failing_rank(run: RunPaths) -> None:
    one = cell(run, 1)
    paths = attempt(run, one)
    for rank in range(2):
        paths.log(rank).write_text(f"rank {rank}\n")
    failure = Failure(1, "n2", 2, "train", "MemoryError", "2026-01-01T00:00:02")
    paths.failure(1).write_text(json.dumps(asdict(failure)))
    assert find_log(run.root, "gat-pp2:0") == paths.log(1)
    assert find_log(run.root, one.id, rank=0) == paths.log(0)
    assert find_log(run.root, one.id[:-3], attempt=1) == paths.log(1)


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ({"cell": "nothing"}, "CELL"),
        ({"cell": "gat"}, "CELL"),
        ({"cell": "gat-pp2:9"}, "CELL"),
        ({"cell": "gat-pp2:0", "rank": 2}, "--rank"),
        ({"cell": "gat-pp2:0", "attempt": 3}, "--attempt"),
    ],
)
def test_logs_refuse_what_is_not_there(flags: dict[str, Any], where: str, run: RunPaths) -> None:
    with pytest.raises(InputError) as caught:
        find_log(run.root, **flags)
    assert str(caught.value).startswith(where)


def test_a_job_that_never_made_an_attempt_has_a_log(run: RunPaths) -> None:
    log = run.logs / "gat-pp2-0-17.log"
    log.write_text("module: not found\n")
    assert find_log(run.root, "gat-pp2:0") == log


def test_status_as_json_says_all(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    one = cell(run)
    finish(attempt(run, one), one)
    assert main(["status", str(run.root), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"done": 1, "missing": 3}
    assert told["cells"][0]["cell"] == one.id


def test_status_has_a_line_a_cell_and_a_summary(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    one = cell(run)
    failure = Failure(1, "n2", 3, "train", "ValueError: [red]loss", "")
    finish(attempt(run, one), one, status="failed", failure=failure)
    for flags in ([], ["--cells"]):
        assert main(["status", str(run.root), *flags]) == 1
        out = capsys.readouterr().out
        assert "ValueError: [red]loss" in out
        assert "run: 1 failed, 3 missing" in out
        assert out.endswith(f"next: python -m jobs rerun {run.root} --missing\n")
    assert out.count("gat-pp2") >= 2


@pytest.mark.parametrize(
    ("ended", "command"),
    [
        (["done", "running", "failed"], None),
        (["done", "unknown"], None),
        (["done", "interrupted", "flagged"], "python -m jobs rerun {run} --failed"),
        (["failed", "missing"], "python -m jobs rerun {run} --missing"),
        (["done", "flagged"], "python -m jobs rerun {run} --flagged"),
        (["done", "done"], "python -m analysis report {run}"),
    ],
)
def test_a_status_says_what_comes_next(
    ended: list[str], command: str | None, run: RunPaths
) -> None:
    known = RunStatus(run.root, tuple(states(*ended)), "")
    assert next_command(known) == (command and command.format(run=run.root))


def test_cells_of_blocks_are_run_again_in_blocks(run: RunPaths) -> None:
    known = RunStatus(run.root, tuple(states("done", "lost")), "", paired=True)
    assert next_command(known) == f"python -m jobs rerun {run.root} --failed --paired"
    assert not status(run.root).paired


def test_a_status_counts_in_one_order(run: RunPaths) -> None:
    cells = tuple(states("lost", "running", "done", "done"))
    known = RunStatus(run.root, cells, "")
    assert list(known.counts().items()) == [("done", 2), ("running", 1), ("lost", 1)]

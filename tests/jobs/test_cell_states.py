"""The state of a cell from its files, the queue and the accounting: the table of precedence."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.schema import Check, Failure
from jobs.cli.terminal_tables import next_steps, print_status
from jobs.run.known_runs import known_runs
from jobs.run.logs import find_log
from jobs.run.status import status
from jobs.submission.submit import Submitted
from tests.jobs.conftest import MadeRun
from tests.jobs.fake_slurm import FakeSlurm, account

DEAD = 2**22 + 1
"""No process has this id: it is above those that Linux gives."""


def age(attempt: AttemptPaths) -> None:
    """As if no file had been written for an hour."""
    for path in [*attempt.root.iterdir(), attempt.root]:
        os.utime(path, (time.time() - 3600,) * 2)


def failure(error: str = "MemoryError") -> Failure:
    return Failure(1, "n2", 2, "train", error, utc_now())


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", "pending"),
        ("CONFIGURING", "pending"),
        ("REQUEUE_HOLD", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("SUSPENDED", "running"),
    ],
)
def test_a_job_in_the_queue(run: MadeRun, slurm: FakeSlurm, word: str, state: str) -> None:
    slurm.set_state(word, reason="Priority")
    assert set(run.states().values()) == {state}
    if state == "pending":
        assert run.state() == ("pending", "Priority")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("FAILED", "failed"),
        ("TIMEOUT", "timed out"),
        ("DEADLINE", "timed out"),
        ("PREEMPTED", "preempted"),
        ("OUT_OF_MEMORY", "out of memory"),
        ("CANCELLED by 0", "cancelled"),
        ("NODE_FAIL", "lost"),
    ],
)
def test_a_job_that_ended_before_its_ranks_began(
    run: MadeRun, slurm: FakeSlurm, word: str, state: str
) -> None:
    slurm.set_queue()
    slurm.set_accounts(account("101_0", word))
    assert run.state()[0] == state
    assert run.state(index=1)[0] == "missing"


def test_the_error_of_the_script_is_the_cause(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text("loading\nerror: set-up line 'module load x' failed with status 1: no x\n")
    assert run.state() == ("failed", "set-up line 'module load x' failed with status 1: no x")


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED"])
def test_a_valid_result_is_done_whatever_slurm_says(
    run: MadeRun, slurm: FakeSlurm, word: str
) -> None:
    run.finish(run.cell(), job="101_0")
    slurm.set_queue()
    slurm.set_accounts(account("101_0", word))
    assert run.state()[0] == "done"


@pytest.mark.parametrize(
    ("verdict", "state"),
    [("ok", "done"), ("suspect", "done"), ("unknown", "done"), ("invalid", "invalid")],
)
def test_a_cell_with_an_invalid_check_is_invalid(
    run: MadeRun, slurm: FakeSlurm, verdict: str, state: str
) -> None:
    slurm.set_queue()
    run.finish(run.cell(), job="101_0", audit=[Check("edges", verdict, "")])  # type: ignore[arg-type]
    assert run.state()[0] == state


def test_the_newest_valid_attempt_counts(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.finish(run.cell())
    run.finish(run.cell(), audit=[Check("edges", "invalid", "")])
    found = status(run.root, fresh=True).cells[0]
    assert (found.state, found.attempt, found.attempts) == ("done", 1, 2)
    assert found.detail == "attempt 2 is not valid"


def test_a_failure_without_a_result_is_what_its_rank_wrote(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    cell = run.cell("gat-pp2")
    attempt = run.begin(cell, 2, "102_0", pid=DEAD)
    write_failure(attempt, failure(), by=1)
    assert run.state("gat-pp2") == ("failed", "rank 1 on n2, train step 2: MemoryError")


def test_the_end_that_slurm_saw_names_the_state(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    slurm.set_accounts(
        account("101_0", "FAILED"), account("101_0.0", "OUT_OF_MEMORY", memory="900K")
    )
    run.begin(run.cell(), 3, "101_0", pid=DEAD)
    words = "Slurm says OUT_OF_MEMORY; a task used 900K, as sacct says"
    assert run.state() == ("out of memory", words)


MEMORY_LINES = [
    "1: slurmstepd-n2: error: StepId=101.0 exceeded memory limit (1600000 > 1536000), being killed",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=101.0. Some of the step tasks have be",
    "srun: error: n2: task 1: Out Of Memory",
]


@pytest.mark.parametrize("line", MEMORY_LINES)
@pytest.mark.parametrize("lost_rank", [True, False])
def test_a_rank_that_was_killed_for_its_memory_is_the_cause(
    run: MadeRun, slurm: FakeSlurm, line: str, lost_rank: bool
) -> None:
    slurm.set_queue()
    slurm.set_accounts(account("101_0", "FAILED"), account("101_0.0", "FAILED", memory="1600000K"))
    attempt = run.begin(run.cell(), 3, "101_0", pid=DEAD)
    if lost_rank:
        write_failure(attempt, failure("ended without an error message: killed"), by=0)
    attempt.log(0).touch()
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text(f"0: step 3\n{line}\nsrun: error: n1: task 0: Exited with exit code 1\n")
    state, detail = run.state()
    assert state == "out of memory"
    words = line.removeprefix("1: ")
    assert detail == f"{words}; a task used 1600000K, as sacct says"
    assert find_log(run.root, "gat-seq:0", None) == log
    (step,) = next_steps(status(run.root, fresh=True))
    assert step.endswith("--missing --mem SIZE, with more than each node gave")


@pytest.mark.parametrize(
    "results",
    [
        {"status": "failed", "failure": failure("ValueError: x (mine.py, line 7)")},
        {"audit": [Check("engine-parity", "invalid", "x")]},
    ],
)
def test_a_wrong_custom_model_is_submitted_under_a_new_name(
    run: MadeRun, slurm: FakeSlurm, results: dict[str, object]
) -> None:
    slurm.set_queue()
    manifest = run.paths.manifest
    manifest.write_text(manifest.read_text().replace('"name": "gat"', '"name": "mine:Deep"'))
    for array, index in (("gat-seq", 0), ("gat-seq", 1), ("gat-pp2", 0)):
        run.finish(run.cell(array, index), **results)
    run.finish(run.cell("gat-pp2", 1))
    (step,) = next_steps(status(run.root, fresh=True))
    assert step.startswith("next: where mine:Deep is wrong: correct it, and ")
    assert "submit SPEC.yaml --name NEW" in step


def test_status_names_the_flags_of_done_cells(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set_queue()
    for index in (0, 1):
        run.finish(run.cell(index=index), audit=[Check("shared-node", "suspect", "")])
    print_status(status(run.root, fresh=True), cells=False)
    out = capsys.readouterr().out
    assert "  flags of done cells: shared-node (2); --cells shows which\n" in out


def test_an_interrupted_cell_resumes_by_a_rerun(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.finish(run.cell(), job="101_0", status="interrupted")
    assert run.state() == (
        "interrupted",
        "stopped by a signal; a rerun resumes from its checkpoint",
    )
    slurm.set_queue(["101_0", "RUNNING", "None", "gat-seq@run", "", str(run.root)])
    assert run.state() == ("running", "interrupted, and its job has not ended")


def test_progress_is_read_from_the_records(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_state("RUNNING")
    run.begin(run.cell(), 4, "101_0")
    found = status(run.root, fresh=True).cells[0]
    assert (found.step, found.steps, found.step_s, found.eta_s) == (4, 10, 2.5, 15.0)


def test_a_process_started_by_hand_runs_until_it_ends(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.begin(run.cell(), 4)
    run.begin(run.cell(index=1), 4, pid=DEAD)
    assert run.state()[0] == "running"
    assert run.state(index=1)[0] == "lost"


def test_a_silent_slurm_leaves_cells_unknown(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    slurm.fail("sacct")
    state, detail = run.state()
    assert state == "unknown"
    assert detail == "Slurm does not say: slurm_load_jobs error: Unable to contact slurm controller"
    run.finish(run.cell(), job="101_0")
    assert run.state()[0] == "done"


@pytest.mark.parametrize(
    ("word", "state"), [("PENDING", "pending"), ("RUNNING", "running"), ("TIMEOUT", "timed out")]
)
def test_the_accounting_answers_for_a_silent_queue(
    run: MadeRun, slurm: FakeSlurm, word: str, state: str
) -> None:
    slurm.fail("squeue")
    slurm.set_accounts(account("101_0", word))
    assert run.state()[0] == state


def test_a_rerun_that_waits_is_pending_although_an_older_attempt_is_valid(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    run.finish(run.cell())
    slurm.fail("squeue")
    slurm.set_accounts(account("101_0", "PENDING"))
    assert run.state() == ("pending", "sacct: PENDING")


def test_jobs_of_a_copied_run_are_not_the_copys(run: MadeRun, slurm: FakeSlurm) -> None:
    copy = run.root.with_name("copy")
    shutil.copytree(run.root, copy)
    assert set(MadeRun(copy).states().values()) == {"missing"}
    assert set(run.states().values()) == {"pending"}


def test_jobs_of_a_moved_run_stay_its_jobs(run: MadeRun, slurm: FakeSlurm) -> None:
    moved = run.root.with_name("moved")
    run.root.rename(moved)
    assert set(MadeRun(moved).states().values()) == {"pending"}


def test_slurm_is_asked_once_in_ten_seconds(run: MadeRun, slurm: FakeSlurm) -> None:
    assert set(run.states().values()) == {"pending"}
    slurm.set_queue()
    assert status(run.root).counts() == {"pending": 4}
    assert status(run.root, fresh=True).counts() == {"missing": 4}


def test_cells_of_a_block_wait_for_their_turn(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(paired=True).run)
    lines = (run.paths.arrays / "gat-paired.cells").read_text().splitlines()[1:]
    first, second = (
        run.cell(line.split("\t")[1], int(line.split("\t")[2]))
        for line in lines
        if line.startswith("0\t")
    )
    slurm.set_state("RUNNING")
    run.begin(first, 2, "101_0")
    assert run.state(first.array, first.index)[0] == "running"
    assert run.state(second.array, second.index) == (
        "pending",
        "waits for its turn in block 0 of gat-paired",
    )
    run.finish(first, "101_0")
    slurm.set_state("PENDING", reason="BeginTime")
    assert run.state(first.array, first.index)[0] == "done"
    assert run.state(second.array, second.index)[0] == "pending"
    slurm.set_state("RUNNING")
    run.begin(second, 1, "101_0")
    assert run.state(first.array, first.index)[0] == "done"
    assert run.state(second.array, second.index)[0] == "running"


@pytest.mark.parametrize(
    ("results", "command"),
    [
        ({}, "rerun RUN --missing"),
        ({"status": "failed", "failure": failure()}, "rerun RUN --failed"),
        ({"audit": [Check("edges", "invalid", "")]}, "rerun RUN --flagged"),
        ({"audit": []}, "report RUN"),
    ],
)
def test_the_next_command_fits_the_states(
    run: MadeRun, slurm: FakeSlurm, results: dict[str, object], command: str
) -> None:
    assert list(next_steps(status(run.root, fresh=True))) == []
    slurm.set_queue()
    for array, index in (("gat-seq", 0), ("gat-seq", 1), ("gat-pp2", 0), ("gat-pp2", 1)):
        if results:
            run.finish(run.cell(array, index), **results)
    (found,) = next_steps(status(run.root, fresh=True))
    assert found.endswith(command.replace("RUN", str(run.root)))


def test_runs_of_a_folder_are_listed_newest_first_with_damage(
    run: MadeRun, submit_small: Callable[..., Submitted], tmp_path: Path
) -> None:
    later = submit_small("later").run
    (later / "manifest.jsonl").write_text("{\n")
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "by-hand" / "cells").mkdir(parents=True)
    found = {one.run.name: one for one in known_runs(tmp_path / "runs")}
    assert set(found) == {"run", "later"}
    assert found["run"].status is not None
    assert found["run"].status.counts() == {"pending": 4}
    assert (found["later"].damage or "").startswith("manifest.jsonl:1")

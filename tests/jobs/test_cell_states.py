"""The state of a cell from its files, the queue and the accounting: the table of precedence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.schema import Check, Failure
from jobs.cli import main
from jobs.cli.terminal_tables import next_steps
from jobs.run.status import status
from jobs.submit.submit import Submitted
from tests.jobs.conftest import MadeRun
from tests.jobs.fake_slurm import FakeSlurm, account

DEAD = 2**22 + 1
"""No process has this id: it is above those that Linux gives."""
SILENT = "slurm_load_jobs error: Unable to contact slurm controller"


def failure(error: str = "MemoryError") -> Failure:
    return Failure(1, "n2", 2, "train", error, utc_now())


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", ("pending", "Priority")),
        ("REQUEUE_HOLD", ("pending", "Priority")),
        ("RUNNING", ("running", "starting")),
        ("COMPLETING", ("running", "starting")),
    ],
)
def test_a_job_in_the_queue(
    run: MadeRun, slurm: FakeSlurm, word: str, state: tuple[str, str]
) -> None:
    slurm.set_state(word, reason="Priority")
    assert run.state() == state


def test_status_asks_slurm_at_most_once_in_ten_seconds(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set_state("PENDING", reason="Priority")
    for _ in range(2):
        main(["status", str(run.root)])
        assert "(Slurm asked " in capsys.readouterr().out
        slurm.fail("squeue")
    assert status(run.root).slurm == "slurm_load_jobs error: connect failure"


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("FAILED", "failed"),
        ("TIMEOUT", "timed out"),
        ("PREEMPTED", "preempted"),
        ("OUT_OF_MEMORY", "out of memory"),
        ("CANCELLED by 0", "cancelled"),
        ("NODE_FAIL", "lost"),
    ],
)
@pytest.mark.parametrize("began", [True, False], ids=["ranks", "no rank"])
def test_a_job_that_ended_without_a_result(
    run: MadeRun, slurm: FakeSlurm, word: str, state: str, began: bool
) -> None:
    slurm.set_queue()
    slurm.set_accounts(account("101_0", word))
    if began:
        run.begin(run.cell(), 3, "101_0", pid=DEAD)
    expected = "lost" if began and state == "failed" else state
    assert run.state() == (expected, f"no result; Slurm says {word.partition(' ')[0]}")
    assert run.state(index=1)[0] == "missing"


def test_the_memory_of_a_step_names_the_state(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    slurm.set_accounts(account("101_0", "FAILED"), account("101_0.0", "OUT_OF_MEMORY"))
    run.begin(run.cell(), 3, "101_0", pid=DEAD)
    assert run.state()[0] == "out of memory"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-n2: error: StepId=101.0 exceeded memory limit (1600000 > 1536000), being k",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=101.0. Some of the step tasks",
        "srun: error: n2: task 1: Out Of Memory",
    ],
)
def test_a_rank_that_was_killed_for_its_memory_is_the_cause(
    run: MadeRun, slurm: FakeSlurm, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.set_queue()
    attempt = run.begin(run.cell(), 3, "101_0", pid=DEAD)
    write_failure(attempt, failure("ended without an error message: killed"), by=0)
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text(f"0: step 3\n1: {line}\nsrun: error: n1: task 0: Exited with exit code 1\n")
    assert run.state() == ("out of memory", line)
    (step,) = next_steps(status(run.root))
    assert step.endswith("--missing --mem SIZE, with more memory")
    assert main(["logs", str(run.root), "gat-seq:0"]) == 0
    assert capsys.readouterr().out == log.read_text()


@pytest.mark.parametrize(
    "results",
    [
        {"status": "failed", "failure": failure("ValueError: x (mine.py, line 7)")},
        {"audit": [Check("engine-parity", "invalid", "x")]},
    ],
)
def test_a_wrong_custom_model_is_submitted_under_a_new_name(
    run: MadeRun, slurm: FakeSlurm, results: dict[str, Any]
) -> None:
    slurm.set_queue()
    manifest = run.paths.manifest
    manifest.write_text(manifest.read_text().replace('"name": "gat"', '"name": "mine:Deep"'))
    for array, index in (("gat-seq", 0), ("gat-seq", 1), ("gat-pp2", 0)):
        run.finish(run.cell(array, index), **results)
    run.finish(run.cell("gat-pp2", 1))
    (step,) = next_steps(status(run.root))
    assert step.startswith("next: where mine:Deep is wrong: correct it, and ")
    assert "submit SPEC.yaml --name NEW" in step


def test_the_error_of_the_script_is_the_cause(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text("loading\nerror: set-up line 'module load x' failed with status 1: no x\n")
    assert run.state() == ("failed", "set-up line 'module load x' failed with status 1: no x")


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize(("verdict", "state"), [("suspect", "done"), ("invalid", "invalid")])
def test_a_result_counts_whatever_slurm_says(
    run: MadeRun, slurm: FakeSlurm, word: str, verdict: str, state: str
) -> None:
    run.finish(run.cell(), job="101_0", audit=[Check("edges", verdict, "")])  # type: ignore[arg-type]
    slurm.set_queue()
    slurm.set_accounts(account("101_0", word))
    assert run.state()[0] == state


def test_the_newest_valid_attempt_counts(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.finish(run.cell())
    run.finish(run.cell(), audit=[Check("edges", "invalid", "")])
    found = status(run.root).cells[0]
    assert (found.state, found.attempt, found.attempts) == ("done", 1, 2)
    assert found.detail == "attempt 2 is not valid"


def test_a_failure_without_a_result_is_what_its_rank_wrote(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    write_failure(run.begin(run.cell("gat-pp2"), 2, "102_0", pid=DEAD), failure(), by=1)
    assert run.state("gat-pp2") == ("failed", "rank 1 on n2, train step 2: MemoryError")


def test_an_interrupted_cell_resumes_by_a_rerun(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.finish(run.cell(), job="101_0", status="interrupted")
    words = "stopped by a signal; a rerun resumes from its checkpoint"
    assert run.state() == ("interrupted", words)
    slurm.set_queue(["101_0", "RUNNING", "None", "gat-seq@run", "", str(run.root)])
    assert run.state()[0] == "running"


def test_progress_is_read_from_the_records(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_state("RUNNING")
    run.begin(run.cell(), 4, "101_0")
    found = status(run.root).cells[0]
    assert (found.step, found.steps, found.step_s, found.eta_s) == (4, 10, 2.5, 15.0)


def test_a_process_started_by_hand_runs_until_it_ends(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.set_queue()
    run.begin(run.cell(), 4)
    run.begin(run.cell(index=1), 4, pid=DEAD)
    assert (run.state()[0], run.state(index=1)[0]) == ("running", "lost")


def test_a_silent_slurm_leaves_cells_unknown(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.fail("squeue", SILENT)
    slurm.fail("sacct")
    assert run.state() == ("unknown", f"Slurm does not say: {SILENT}")
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
    run.finish(run.cell(), job="99_0")
    slurm.fail("squeue")
    slurm.set_accounts(account("101_0", "PENDING"))
    assert run.state() == ("pending", "sacct: PENDING")


def test_jobs_of_a_run_stay_its_own_when_it_is_copied_or_moved(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    copy, moved = run.root.with_name("copy"), run.root.with_name("moved")
    shutil.copytree(run.root, copy)
    assert set(MadeRun(copy).states().values()) == {"missing"}
    assert set(run.states().values()) == {"pending"}
    run.root.rename(moved)
    assert set(MadeRun(moved).states().values()) == {"pending"}


def test_cells_of_a_block_wait_for_their_turn(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(paired=True).run)
    rows = (run.paths.arrays / "gat-paired.cells").read_text().splitlines()[1:3]
    first, second = (run.cell(row.split("\t")[1], int(row.split("\t")[2])) for row in rows)

    def states() -> list[str]:
        return [run.state(cell.array, cell.index)[0] for cell in (first, second)]

    slurm.set_state("RUNNING")
    run.begin(first, 2, "101_0")
    assert states() == ["running", "pending"]
    waits = "waits for its turn in block 0 of gat-paired"
    assert run.state(second.array, second.index)[1] == waits
    run.finish(first, "101_0")
    slurm.set_state("PENDING", reason="BeginTime")
    assert states() == ["done", "pending"]
    slurm.set_state("RUNNING")
    run.begin(second, 1, "101_0")
    assert states() == ["done", "running"]


@pytest.mark.parametrize(
    ("results", "command"),
    [
        ({}, "rerun RUN --missing"),
        ({"status": "failed", "failure": failure()}, "rerun RUN --failed"),
        ({"audit": [Check("edges", "invalid", "")]}, "rerun RUN --flagged"),
        ({"audit": [Check("shared-node", "suspect", "")]}, "report RUN"),
    ],
)
def test_status_names_the_next_command(
    run: MadeRun,
    slurm: FakeSlurm,
    results: dict[str, Any],
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", str(run.root)]) == 3
    assert "next: " not in capsys.readouterr().out
    slurm.set_queue()
    for array, index in (("gat-seq", 0), ("gat-seq", 1), ("gat-pp2", 0), ("gat-pp2", 1)):
        if results:
            run.finish(run.cell(array, index), **results)
    for kept in (slurm.home.parent / "cache").glob("slurm-*.json"):
        kept.unlink()
    assert main(["status", str(run.root)]) == (0 if "report" in command else 1)
    out = capsys.readouterr().out
    assert out.endswith(command.replace("RUN", str(run.root)) + "\n")
    assert ("flags of done cells: shared-node (4)" in out) == ("report" in command)


def test_runs_of_a_folder_are_listed_newest_first_with_damage(
    run: MadeRun,
    submit_small: Callable[..., Submitted],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    later = submit_small("later").run
    (later / "manifest.jsonl").write_text("{\n")
    (tmp_path / "runs" / "by-hand" / "cells").mkdir(parents=True)
    capsys.readouterr()
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "made", "cells", "state"]
    assert first.startswith("later  20")
    assert "  damaged: manifest.jsonl:1" in first
    assert second.split()[3:] == ["4", "4", "pending"]

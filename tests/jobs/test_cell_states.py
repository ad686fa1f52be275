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
FAILURE = Failure(1, "n2", 2, "train", "MemoryError", utc_now())
SUSPECT, INVALID = Check("shared-node", "suspect", ""), Check("engine-parity", "invalid", "x")


INTERRUPTED = "stopped by a signal; a rerun resumes from its checkpoint"
# What squeue says of the job (nothing where it has ended), and sacct; what the cell's attempt has:
# steps of ranks that are dead, or a result -> the state, and how its detail ends.
STATES: list[tuple[str | None, str, int | dict[str, Any] | None, str, str]] = [
    ("PENDING", "", None, "pending", "Priority"),
    ("REQUEUE_HOLD", "", None, "pending", "Priority"),
    ("RUNNING", "", None, "running", "starting"),
    ("COMPLETING", "", None, "running", "starting"),
    ("", "", None, "missing", ""),
    ("", "FAILED", None, "failed", "Slurm says FAILED"),
    ("", "FAILED", 3, "lost", "Slurm says FAILED"),
    ("", "TIMEOUT", 3, "timed out", "Slurm says TIMEOUT"),
    ("", "PREEMPTED", 3, "preempted", "Slurm says PREEMPTED"),
    ("", "OUT_OF_MEMORY", 3, "out of memory", "Slurm says OUT_OF_MEMORY"),
    ("", "CANCELLED by 0", None, "cancelled", "Slurm says CANCELLED"),
    ("", "NODE_FAIL", None, "lost", "Slurm says NODE_FAIL"),
    ("", "FAILED", {"audit": [SUSPECT]}, "done", "shared-node"),
    ("", "COMPLETED", {"audit": [INVALID]}, "invalid", "engine-parity"),
    ("", "", {"status": "failed", "failure": FAILURE}, "failed", "train step 2: MemoryError"),
    ("", "COMPLETED", {"status": "interrupted"}, "interrupted", INTERRUPTED),
    (None, "PENDING", None, "pending", "sacct: PENDING"),
    (None, "RUNNING", None, "running", "starting"),
    (None, "TIMEOUT", None, "timed out", "Slurm says TIMEOUT"),
    (None, "", None, "unknown", f"Slurm does not say: {SILENT}"),
    (None, "", {}, "done", ""),
]


@pytest.mark.parametrize(("queued", "accounted", "attempt", "state", "detail"), STATES)
def test_the_state_of_a_cell(
    run: MadeRun,
    slurm: FakeSlurm,
    queued: str | None,
    accounted: str,
    attempt: int | dict[str, Any] | None,
    state: str,
    detail: str,
) -> None:
    if queued is None:
        slurm.fail("squeue", SILENT)
    elif queued:
        slurm.set_state(queued, reason="Priority")
    else:
        slurm.set_queue()
    if accounted:
        slurm.set_accounts(account("101_0", accounted))
    if isinstance(attempt, int):
        run.begin(run.cell(), attempt, "101_0", pid=DEAD)
    elif attempt is not None:
        run.finish(run.cell(), job="101_0", **attempt)
    found = run.state()
    assert found[0] == state
    assert (found[1] or "").endswith(detail)


def test_the_state_of_a_cell_of_which_slurm_says_nothing(run: MadeRun, slurm: FakeSlurm) -> None:
    """A process by hand, a rank's own failure, the script's error, the memory of a step."""
    slurm.set_queue()
    of_step = account("102_1.0", "OUT_OF_MEMORY", array="gat-pp2")
    slurm.set_accounts(account("102_1", "FAILED", array="gat-pp2"), of_step)
    run.begin(run.cell(), 4)
    run.begin(run.cell(index=1), 4, pid=DEAD)
    assert (run.state()[0], run.state(index=1)[0]) == ("running", "lost")
    write_failure(run.begin(run.cell("gat-pp2"), 2, "102_0", pid=DEAD), FAILURE, by=1)
    assert run.state("gat-pp2") == ("failed", "rank 1 on n2, train step 2: MemoryError")
    assert run.state("gat-pp2", 1)[0] == "out of memory"
    log = run.paths.logs / "gat-pp2-1-102.log"
    log.write_text("loading\nerror: set-up line 'module load x' failed with status 1: no x\n")
    slurm.set_accounts()
    words = "set-up line 'module load x' failed with status 1: no x"
    assert run.state("gat-pp2", 1) == ("failed", words)


def test_the_newest_valid_attempt_counts_unless_the_cell_waits_or_runs_again(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    slurm.fail("squeue")
    run.finish(run.cell(), job="99_0")
    slurm.set_accounts(account("101_0", "PENDING"))
    assert run.state() == ("pending", "sacct: PENDING")
    run.finish(run.cell(), job="101_0", audit=[INVALID])
    found = status(run.root).cells[0]
    assert (found.state, found.attempt, found.attempts) == ("done", 1, 2)
    assert found.detail == "attempt 2 is not valid"
    run.finish(run.cell(index=1), job="101_1", status="interrupted")
    slurm.work("squeue")
    slurm.set_queue(["101_1", "RUNNING", "None", "gat-seq@run", "", str(run.root)])
    run.begin(run.cell(index=1), 4, "101_1")
    (found,) = (cell for cell in status(run.root).cells if cell.state == "running")
    assert (found.step, found.steps, found.step_s, found.eta_s) == (4, 10, 2.5, 15.0)


def test_status_asks_slurm_at_most_once_in_ten_seconds(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        main(["status", str(run.root)])
        assert "(Slurm asked " in capsys.readouterr().out
        slurm.fail("squeue")
    assert status(run.root).slurm == "slurm_load_jobs error: connect failure"


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
    write_failure(run.begin(run.cell(), 2, "101_0", pid=DEAD), FAILURE, by=0)
    log = run.paths.logs / "gat-seq-0-101.log"
    log.write_text(f"0: step 3\n1: {line}\nsrun: error: n1: task 0: Exited with exit code 1\n")
    assert run.state() == ("out of memory", line)
    (step,) = next_steps(status(run.root))
    assert step.endswith("--missing --mem SIZE, with more memory")
    assert main(["logs", str(run.root), "gat-seq:0"]) == 0
    assert capsys.readouterr().out == log.read_text()


@pytest.mark.parametrize(
    "results", [{"status": "failed", "failure": FAILURE}, {"audit": [INVALID]}]
)
def test_a_wrong_custom_model_is_submitted_under_a_new_name(
    run: MadeRun, slurm: FakeSlurm, results: dict[str, Any]
) -> None:
    slurm.set_queue()
    manifest = run.paths.manifest
    manifest.write_text(manifest.read_text().replace('"name": "gat"', '"name": "mine:Deep"'))
    for cell in run.cells:
        run.finish(cell, **results)
    (step,) = next_steps(status(run.root))
    assert step.startswith("next: where mine:Deep is wrong: correct it, and ")
    assert "submit SPEC.yaml --name NEW" in step


def test_jobs_of_a_run_stay_its_own_when_it_is_copied_or_moved(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    copy, moved = run.root.with_name("copy"), run.root.with_name("moved")
    shutil.copytree(run.root, copy)
    assert set(MadeRun(copy).states().values()) == {"missing"}
    assert set(run.states().values()) == {"pending"}
    run.root.rename(moved)
    assert set(MadeRun(moved).states().values()) == {"pending"}


def test_a_block_runs_its_cells_in_order_and_again_what_is_not_valid(
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
    run.finish(first, "101_0", audit=[INVALID])
    assert states() == ["invalid", "pending"]
    slurm.set_state("PENDING", reason="BeginTime")
    assert states() == ["pending", "pending"]
    run.finish(first, "101_0")
    assert states() == ["done", "pending"]
    slurm.set_state("RUNNING")
    run.begin(second, 1, "101_0")
    assert states() == ["done", "running"]


@pytest.mark.parametrize(
    ("results", "command"),
    [
        (None, "rerun RUN --missing"),
        ({"status": "failed", "failure": FAILURE}, "rerun RUN --failed"),
        ({"audit": [INVALID]}, "rerun RUN --flagged"),
        ({"audit": [SUSPECT]}, "report RUN"),
    ],
)
def test_status_names_the_next_command(
    run: MadeRun,
    slurm: FakeSlurm,
    results: dict[str, Any] | None,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.slurm.squeue_and_sacct.KEPT_S", 0.0)
    assert main(["status", str(run.root)]) == 3
    assert "next: " not in capsys.readouterr().out
    slurm.set_queue()
    for cell in run.cells if results else ():
        run.finish(cell, **(results or {}))
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

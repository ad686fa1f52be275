"""The state of a cell from its files, the queue and the accounting: the table of precedence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.schema import Check, Failure
from jobs.cli import main
from jobs.run.attempt_files import memory_cause
from jobs.run.status import status
from jobs.slurm import squeue_and_sacct
from jobs.submit.submit import Submitted
from tests.jobs.conftest import SILENT, FakeSlurm, MadeRun

DEAD = 2**22 + 1
"""No process has this id: it is above those that Linux gives."""
FAILURE = Failure(1, "n2", 2, "train", "MemoryError", utc_now())
SUSPECT, INVALID = Check("shared-node", "suspect", ""), Check("engine-parity", "invalid", "x")
FAILED = {"status": "failed", "failure": FAILURE}
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
    ("", "CANCELLED", None, "cancelled", "Slurm says CANCELLED"),
    ("", "NODE_FAIL", None, "lost", "Slurm says NODE_FAIL"),
    ("", "FAILED", {"audit": [SUSPECT]}, "done", "shared-node"),
    ("", "COMPLETED", {"audit": [INVALID]}, "invalid", "engine-parity"),
    ("", "", FAILED, "failed", "train step 2: MemoryError"),
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
    slurm.silent = queued is None
    slurm.set_states(queued or "COMPLETED", reason="Priority")
    if not queued:
        slurm.queue.clear()
    if accounted:
        slurm.account("101_0", accounted)
    if isinstance(attempt, int):
        run.begin(run.cell(), attempt, "101_0", pid=DEAD)
    elif attempt is not None:
        run.finish(run.cell(), job="101_0", **attempt)
    found = run.state()
    assert found[0] == state
    assert (found[1] or "").endswith(detail)


def test_the_state_of_a_cell_of_which_slurm_says_nothing(run: MadeRun, slurm: FakeSlurm) -> None:
    """A process by hand, a dead one, and a rank's own failure."""
    slurm.queue.clear()
    run.begin(run.cell(), 4)
    run.begin(run.cell(index=1), 4, pid=DEAD)
    write_failure(run.begin(run.cell("gat-pp2"), 2, "102_0", pid=DEAD), FAILURE, by=1)
    assert run.states() == ["running", "failed", "lost", "missing"]
    assert run.state("gat-pp2")[1] == "rank 1 on n2, train step 2: MemoryError"


def test_the_newest_valid_attempt_counts_unless_the_cell_waits_or_runs_again(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    slurm.silent = True
    run.finish(run.cell(), job="99_0")
    slurm.account("101_0", "PENDING")
    assert run.state() == ("pending", "sacct: PENDING")
    run.finish(run.cell(), job="101_0", audit=[INVALID])
    found = status(run.root).cells[0]
    assert (found.state, found.attempt, found.attempts) == ("done", 1, 2)
    assert found.detail == "attempt 2 is not valid"
    run.finish(run.cell(index=1), job="101_1", status="interrupted")
    slurm.silent = False
    slurm.queue = [replace(slurm.queue[0], task_ids="1", state="RUNNING")]
    run.begin(run.cell(index=1), 4, "101_1")
    (found,) = (cell for cell in status(run.root).cells if cell.state == "running")
    assert (found.step, found.steps, found.step_s, found.eta_s) == (4, 10, 2.5, 15.0)


def test_status_asks_slurm_at_most_once_in_ten_seconds(
    run: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        main(["status", str(run.root)])
        assert "(Slurm asked " in capsys.readouterr().out
        slurm.silent = True
    assert status(run.root).slurm == SILENT


def test_tasks_that_sacct_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that never began, a rank that was killed for its memory, and somebody else's job."""
    rows = [
        *(("12_[4-5%2]", "CANCELLED by 0", "a@run", "", ""), ("13_0", "FAILED", "b@run", "5", "2")),
        *(("13_0.0", "OUT_OF_MEMORY", "python", "5", "2"), ("14_0", "FAILED", "c@run", "5", "2")),
    ]
    printed = "\n".join("\x1f".join(row) for row in rows)
    monkeypatch.setattr(squeue_and_sacct, "ask", lambda *_, **__: printed)
    found = squeue_and_sacct.ask_sacct({"12": "a", "13": None, "14": "other"})
    assert [(task.task, task.state, task.elapsed_s) for task in found] == [
        *(("12_4", "CANCELLED", 0), ("12_5", "CANCELLED", 0), ("13_0", "OUT_OF_MEMORY", 5)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd-n2: error: StepId=101.0 exceeded memory limit (1600000 > 1536000), being k",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=101.0. Some of the step tasks",
        "srun: error: n2: task 1: Out Of Memory",
    ],
)
def test_a_rank_that_was_killed_for_its_memory_is_the_cause(line: str) -> None:
    assert memory_cause(["0: step 3", f"1: {line}", "srun: error: Exited"]) == line


def test_jobs_of_a_run_stay_its_own_when_it_is_copied_or_moved(run: MadeRun) -> None:
    copy, moved = run.root.with_name("copy"), run.root.with_name("moved")
    shutil.copytree(run.root, copy)
    assert set(MadeRun(copy).states()) == {"missing"}
    assert set(run.states()) == {"pending"}
    run.root.rename(moved)
    assert set(MadeRun(moved).states()) == {"pending"}


def test_a_block_runs_its_cells_in_order_and_again_what_is_not_valid(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(paired=True).run)
    rows = (run.paths.arrays / "gat-paired.cells").read_text().splitlines()[1:3]
    first, second = (run.cell(row.split("\t")[1], int(row.split("\t")[2])) for row in rows)

    def states() -> list[str]:
        return [run.state(cell.array, cell.index)[0] for cell in (first, second)]

    slurm.set_states("RUNNING")
    run.begin(first, 2, "101_0")
    assert states() == ["running", "pending"]
    waits = "waits for its turn in block 0 of gat-paired"
    assert run.state(second.array, second.index)[1] == waits
    run.finish(first, "101_0", audit=[INVALID])
    assert states() == ["invalid", "pending"]
    slurm.set_states("PENDING", reason="BeginTime")
    assert states() == ["pending", "pending"]
    run.finish(first, "101_0")
    assert states() == ["done", "pending"]
    slurm.set_states("RUNNING")
    run.begin(second, 1, "101_0")
    assert states() == ["done", "running"]


# What each cell has, and its model -> how the output of `status` ends.
NEXT: list[tuple[dict[str, Any] | None, str, str]] = [
    (None, "gat", "rerun RUN --missing"),
    (FAILED, "gat", "rerun RUN --failed"),
    ({"audit": [INVALID]}, "gat", "rerun RUN --flagged"),
    ({"audit": [SUSPECT]}, "gat", "shared-node (4); --cells shows which\nnext: report RUN"),
    (FAILED, "mine:Deep", "SPEC.yaml --name NEW; a rerun runs the copy in the run"),
    ({"audit": [INVALID]}, "mine:Deep", "SPEC.yaml --name NEW; a rerun runs the copy in the run"),
]


@pytest.mark.parametrize(("results", "model", "ending"), NEXT)
def test_status_names_the_next_command(
    run: MadeRun,
    slurm: FakeSlurm,
    results: dict[str, Any] | None,
    model: str,
    ending: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(squeue_and_sacct, "KEPT_S", 0.0)
    assert main(["status", str(run.root)]) == 3
    assert "next: " not in capsys.readouterr().out
    slurm.queue.clear()
    manifest = run.paths.manifest
    manifest.write_text(manifest.read_text().replace('"name": "gat"', f'"name": "{model}"'))
    for cell in run.cells if results else ():
        run.finish(cell, **(results or {}))
    assert main(["status", str(run.root)]) == (0 if "report" in ending else 1)
    out = capsys.readouterr().out.replace("python -m jobs ", "").replace("python -m analysis ", "")
    assert out.endswith(ending.replace("RUN", str(run.root)) + "\n")


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

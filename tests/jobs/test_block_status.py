"""What status, rerun and cancel make of cells that are measured in blocks."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Failure, Header, Result
from jobs.actions import rerun as rerunning
from jobs.actions.cancel import cancel
from jobs.actions.rerun import rerun
from jobs.cluster.launch import Launch
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.run_blocks import read_blocks
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import read_submissions, record_submission
from jobs.spec.planning import plan
from jobs.state import run_status
from jobs.state.run_status import live_slurm_jobs, status

GRID = {
    "models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2", "pp3"],
    "microbatches": 3, "seq_microbatches": 1, "repeats": 2,
}  # fmt: skip
LATER = "2126-01-01T00:00:00+00:00"
EARLIER = "2026-01-01T00:00:00+00:00"
DOWN = "Unable to contact slurm controller (connect failure)"


class Paired:
    """Two blocks of three cells, submitted as job 17; `first` has those of block 0 in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one = plan({"name": "run", "defaults": {"train_steps": 10}, "grids": [GRID]})
        self.paths: RunPaths = create_run_folder(one, folder, Launch(), paired=True)
        record_submission(self.paths, "slurm", "gat-paired", [0, 1], "17", Launch())
        cells = read_manifest(self.paths.manifest)
        (array,) = read_blocks(self.paths).arrays_with(cells, cells)
        self.first, self.second = (block.cells for block in array.blocks)
        self.monkeypatch = monkeypatch

    def queue(self, *states: tuple[str, str], **answer: Any) -> None:
        """Block -> its state in the queue; other words of Slurm's in `answer`."""
        jobs = tuple(
            QueuedJob("17", block, state, "Resources", "gat-paired@run", "", "")
            for block, state in states
        )
        told = QueueAnswer(time.time() + 10, jobs, **answer)
        self.monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: told)

    def begin(self, cell: Cell, task: str = "17_0") -> Path:
        """An attempt with rank 0's first line, of another host; it is later than all before."""
        attempt = self.paths.cell(cell.id).claim_attempt()
        number, _, index = task.partition("_")
        slurm = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
        header = Header(
            cell.id, attempt.number, 0, 0, 0, 1, "n1", os.getpid(), "", 1, 1, "cpu", [], 1, "",
            slurm=slurm,
        )  # fmt: skip
        attempt.records(0).write_text(json.dumps(asdict(header)) + "\n")
        self._latest = getattr(self, "_latest", time.time()) + 10
        for path in (attempt.records(0), attempt.root):
            os.utime(path, (self._latest, self._latest))
        return attempt.root

    def end(self, cell: Cell, ended_at: str = LATER, **changes: Any) -> None:
        attempt = self.paths.cell(cell.id).attempts()[-1]
        values: dict[str, Any] = {
            "cell": cell.id, "attempt": attempt.number, "status": "done", "experiment": {},
            "layout": {}, "provenance": {}, "started_at": EARLIER, "ended_at": ended_at,
            "train_steps": 10, "test_steps": 1, "samples_per_step": 5,
        }  # fmt: skip
        Result(**values | changes).write(attempt.result)
        for path in (attempt.result, attempt.root):
            os.utime(path, (self._latest, self._latest))

    def states(self, cells: tuple[Cell, ...]) -> list[str]:
        found = {cell.cell: cell.state for cell in status(self.paths.root).cells}
        return [found[cell.id] for cell in cells]

    def detail(self, cell: Cell) -> str | None:
        return next(c.detail for c in status(self.paths.root).cells if c.cell == cell.id)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paired:
    """On a machine without Slurm, whose answers are given."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    return Paired(tmp_path / "run", monkeypatch)


FAILURE = Failure(0, "n1", 3, "train", "MemoryError", "")


def test_cells_of_a_queued_block_wait_in_it(run: Paired) -> None:
    run.queue(("0-1", "PENDING"))
    assert run.states(run.first + run.second) == ["pending"] * 6
    assert run.detail(run.second[2]) == "waits in block 1 of gat-paired: Resources"
    known = status(run.paths.root)
    assert {cell.job for cell in known.cells} == {"17_0", "17_1"}
    assert known.paired


def test_cells_of_a_running_block_take_turns(run: Paired) -> None:
    run.queue(("0", "RUNNING"), ("1", "PENDING"))
    assert run.states(run.first) == ["pending"] * 3
    assert run.detail(run.first[0]) == "waits for its turn in block 0 of gat-paired"
    run.begin(run.first[0])
    assert run.states(run.first) == ["running", "pending", "pending"]
    run.end(run.first[0])
    assert run.states(run.first) == ["done", "pending", "pending"]
    run.begin(run.first[1])
    run.end(run.first[1], status="failed", failure=FAILURE)
    assert run.states(run.first) == ["done", "failed", "pending"]
    run.begin(run.first[2])
    assert run.states(run.first) == ["done", "failed", "running"]
    assert run.states(run.second) == ["pending"] * 3


def test_a_cell_of_a_block_that_ends_while_slurm_is_asked_is_done(
    run: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.queue(("0", "RUNNING"), ("1", "PENDING"))
    answer = run_status.query_queue
    run.begin(run.first[0])

    def answers_late(*asked: Any, **options: Any) -> QueueAnswer:
        run.end(run.first[0])
        return answer(*asked, **options)

    monkeypatch.setattr(run_status, "query_queue", answers_late)
    assert run.states(run.first) == ["done", "pending", "pending"]


def test_ranks_that_died_without_a_word_are_lost_once_the_next_cell_runs(run: Paired) -> None:
    run.queue(("0", "RUNNING"), accounted={"17_0": "RUNNING"})
    run.begin(run.first[0])
    run.begin(run.first[1])
    assert run.states(run.first) == ["lost", "running", "pending"]


def test_a_requeued_block_comes_back_to_what_is_not_done(run: Paired) -> None:
    run.begin(run.first[0])
    run.end(run.first[0])
    run.begin(run.first[1])
    run.end(run.first[1], status="interrupted")
    run.queue(("0", "PENDING"))
    assert run.states(run.first) == ["done", "pending", "pending"]
    run.queue(("0", "RUNNING"))
    assert run.states(run.first) == ["done", "pending", "pending"]
    run.begin(run.first[1])
    assert run.states(run.first) == ["done", "running", "pending"]


def test_behind_the_cell_where_a_requeued_block_is_failed_ones_come_again(run: Paired) -> None:
    run.queue(("0", "RUNNING"))
    for cell, ended in zip(run.first, ("failed", "failed", "done"), strict=True):
        run.begin(cell)
        run.end(cell, status=ended, failure=FAILURE if ended == "failed" else None)
    run.begin(run.first[0])
    assert run.states(run.first) == ["running", "pending", "done"]


def test_attempts_of_other_jobs_are_no_turn_of_this_block(run: Paired) -> None:
    run.queue(("0", "RUNNING"))
    run.begin(run.first[2], task="12_0")
    run.end(run.first[2], EARLIER)
    run.begin(run.first[1], task="12_0")
    assert run.states(run.first) == ["pending"] * 3


def test_a_cell_by_hand_is_its_own_jobs(run: Paired) -> None:
    block = QueuedJob("17", "1", "PENDING", "Resources", "gat-paired@run", "", "")
    name, index = f"{run.first[1].array}@run", str(run.first[1].index)
    script = str(run.paths.script(run.first[1].array))
    by_hand = QueuedJob("20", index, "RUNNING", "None", name, script, "")
    told = QueueAnswer(time.time() + 10, (block, by_hand))
    run.monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: told)
    assert run.states(run.first) == ["missing", "running", "missing"]
    assert run.states(run.second) == ["pending"] * 3
    submissions = read_submissions(run.paths)
    assert live_slurm_jobs(run.paths, submissions)[0] == ["17", "20"]
    assert live_slurm_jobs(run.paths, submissions, "gat-paired")[0] == ["17"]
    assert live_slurm_jobs(run.paths, submissions, run.first[1].array)[0] == ["20"]


def test_a_cell_that_failed_in_a_running_block_is_its_rerun_s(run: Paired) -> None:
    """squeue lists waiting jobs first, so the block that has had its turn comes after the rerun."""
    run.begin(run.first[0])
    run.end(run.first[0], EARLIER, status="failed", failure=FAILURE)
    run.begin(run.first[1])
    again = run.first[0]
    record_submission(run.paths, "slurm", again.array, [again.index], "20", Launch())
    block = QueuedJob("17", "0", "RUNNING", "None", "gat-paired@run", "", "")
    name = f"{again.array}@run"

    def listed(state: str) -> None:
        alone = QueuedJob("20", str(again.index), state, "Priority", name, "", "")
        told = QueueAnswer(time.time() + 10, (alone, block))
        run.monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: told)

    listed("PENDING")
    assert run.states(run.first) == ["pending", "running", "pending"]
    listed("RUNNING")
    assert run.states(run.first) == ["running", "running", "pending"]
    run.begin(again, task=f"20_{again.index}")
    assert run.states(run.first) == ["running", "running", "pending"]


def test_a_block_that_has_ended_leaves_what_the_files_and_the_accounting_say(run: Paired) -> None:
    run.begin(run.first[0])
    run.end(run.first[0])
    run.begin(run.first[1])
    run.queue(accounted={"17_0": "TIMEOUT", "17_1": "CANCELLED"})
    assert run.states(run.first) == ["done", "timed out", "timed out"]
    run.begin(run.second[0], task="17_1")
    run.end(run.second[0], status="failed", failure=FAILURE)
    assert run.states(run.second) == ["failed", "cancelled", "cancelled"]


def test_where_only_the_accounting_answers_it_tells_the_same(run: Paired) -> None:
    run.begin(run.first[0])
    run.end(run.first[0])
    run.begin(run.first[1])
    run.queue(accounted={"17_0": "RUNNING", "17_1": "PENDING"}, error=DOWN)
    assert run.states(run.first) == ["done", "running", "pending"]
    assert run.states(run.second) == ["pending"] * 3
    run.queue(error=DOWN)
    assert run.states(run.second) == ["unknown"] * 3


def test_a_rerun_takes_cells_alone_or_their_whole_blocks(
    run: Paired, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Started:
        def finish(self, *_: object) -> None: ...

    def start(_: RunPaths, cells: list[Cell], *__: object, paired: bool) -> Started:
        started.append([*(cell.id for cell in cells), str(paired)])
        return Started()

    monkeypatch.setattr(rerunning, "start_cells", start)
    monkeypatch.setattr(rerunning, "check_cluster", lambda *_: None)
    run.queue()
    for cell in run.first:
        run.begin(cell)
        run.end(cell)
    one = {"array": run.first[1].array, "index": str(run.first[1].index), "live": True}
    rerun(run.paths.root, **one)
    rerun(run.paths.root, **one, paired=True)
    assert started == [[run.first[1].id, "False"], [run.first[1].id, "True"]]
    # Another cell of the block waits in a job by hand.
    script = str(run.paths.script("gat-x"))
    other = run.first[0]
    job = QueuedJob("20", str(other.index), "PENDING", "", f"{other.array}@run", script, "")
    told = QueueAnswer(time.time() + 10, (job,))
    monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: told)
    rerun(run.paths.root, **one)
    with pytest.raises(InputError, match=f"found {other.array} {other.index}, which is pending"):
        rerun(run.paths.root, **one, paired=True)


def test_an_array_whose_cells_are_in_blocks_is_not_cancelled_alone(run: Paired) -> None:
    run.queue(("0", "RUNNING"))
    with pytest.raises(InputError, match="in blocks with others; allowed: gat-paired, or no"):
        cancel(run.paths.root, "gat-pp2")

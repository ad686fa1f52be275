"""From which checkpoint a new attempt goes on, on folders made by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.core.versioned_json import with_digest
from gnnhpc.records.record_writer import Written
from gnnhpc.records.resume_points import (
    CHECKPOINT_VERSION,
    FRESH_VARIABLE,
    EarlierAttempts,
    digests,
    find_resume_point,
)
from gnnhpc.records.schema import Check
from tests.records.test_schema import RESULT

HERE = {"code": "a", "versions": {"torch": "2"}, "ranks": [{"threads": 1, "kernels": {}}]}


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CellPaths:
    monkeypatch.delenv(FRESH_VARIABLE, raising=False)
    return CellPaths(tmp_path / "cell")


def attempt(cell: CellPaths, *steps: int, status: str | None = "failed") -> AttemptPaths:
    """One that left these checkpoints, and a result unless its status is none."""
    claimed = cell.claim_attempt()
    for step in steps:
        folder = claimed.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "__0_0.distcp").write_bytes(bytes(range(100)))
        facts: dict[str, object] = {"version": CHECKPOINT_VERSION, "cell": cell.root.name}
        facts |= {"step": step, "tested": step // 10, "environment": HERE}
        written = [Written("rank-0000.jsonl", 0, "")]
        earlier = EarlierAttempts().with_attempt(claimed.root.name, [], written)
        facts |= {"files": digests(folder), "earlier": asdict(earlier)}
        (folder / "metadata.json").write_text(json.dumps(with_digest(facts)))
    if status is not None:
        replace(RESULT, status=status).write(claimed.result)  # type: ignore[arg-type]
    return claimed


def resume_point(cell: CellPaths) -> tuple[int, int, int] | None:
    """Attempt, step and evaluations that a new attempt resumes from."""
    found = find_resume_point(cell, cell.claim_attempt()).point
    return None if found is None else (found.attempt, found.step, found.test_steps_done)


@pytest.mark.parametrize("status", ["interrupted", None])
def test_the_newest_checkpoint_of_an_attempt_that_did_not_finish(
    cell: CellPaths, status: str | None
) -> None:
    attempt(cell, 5, 10, 100, status=status)
    assert resume_point(cell) == (1, 100, 10)


def test_nothing_to_resume_from(cell: CellPaths) -> None:
    assert resume_point(cell) is None
    attempt(cell)
    assert resume_point(cell) is None


def test_a_finished_attempt_is_measured_again_from_the_start(cell: CellPaths) -> None:
    attempt(cell, 20)
    attempt(cell, 29, status="done")
    assert resume_point(cell) is None
    attempt(cell, 7)
    assert resume_point(cell) == (4, 7, 0)


@pytest.mark.parametrize("damage", ["{", '{"version": 99, "step": 1, "tested": 0}'])
def test_a_damaged_checkpoint_is_no_checkpoint(cell: CellPaths, damage: str) -> None:
    left = attempt(cell, 10, 20)
    (left.checkpoints / ".step-00000030.partial").mkdir()
    (left.checkpoints / "step-00000020" / "metadata.json").write_text(damage)
    assert resume_point(cell) == (1, 10, 1)


@pytest.mark.parametrize("damage", [bytes(100), None])
def test_a_checkpoint_whose_tensors_are_not_as_written_is_skipped(
    cell: CellPaths, damage: bytes | None
) -> None:
    left = attempt(cell, 10, 20)
    tensors = left.checkpoints / "step-00000020" / "__0_0.distcp"
    if damage is None:
        tensors.unlink()
    else:
        tensors.write_bytes(damage)
    assert resume_point(cell) == (1, 10, 1)


def test_starting_over_is_asked_for_by_a_variable(
    cell: CellPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(cell, 10)
    monkeypatch.setenv(FRESH_VARIABLE, "1")
    assert resume_point(cell) is None


def say(attempt: AttemptPaths, step: int, **changes: object) -> None:
    """What a checkpoint made by hand was computed with."""
    file = attempt.checkpoints / f"step-{step:08d}" / "metadata.json"
    facts = json.loads(file.read_text()) | {"environment": HERE | changes}
    file.write_text(json.dumps(with_digest(facts)))


def test_an_older_checkpoint_that_fits_is_taken_before_a_newer_one_that_does_not(
    cell: CellPaths,
) -> None:
    """As where a job goes to and fro between two makes of nodes."""
    first = attempt(cell, 10, 20)
    say(first, 10)
    say(first, 20)
    second = attempt(cell, 5, 15)
    say(second, 5, ranks=[{"threads": 2, "kernels": {}}])
    say(second, 15, versions={"torch": "1", "pymetis": "3"})
    found = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found.point is not None
    assert found.point.name == "attempt-1/step-00000020"
    assert found.skipped == (
        {
            "checkpoint": "attempt-2/step-00000015",
            "why": "pymetis 3 there, none here; torch 1 there, 2 here",
        },
        {
            "checkpoint": "attempt-2/step-00000005",
            "why": "threads of rank 0 2 there, 1 here",
        },
    )
    assert found.lines()[0].endswith("; resumes from attempt-1/step-00000020")


def test_the_log_names_a_damaged_checkpoint(cell: CellPaths) -> None:
    left = attempt(cell, 10)
    (left.checkpoints / "step-00000010" / "__0_0.distcp").unlink()
    found = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found.point is None
    assert found.lines() == [
        "checkpoint attempt-1/step-00000010 is skipped: __0_0.distcp is missing or damaged; "
        "begins at step 0"
    ]


QUIET = [Check("drift", "ok", "no stretch differs"), Check("noisy", "ok", "no other process")]
DRIFT = Check("drift", "suspect", "slower from step 3 on")
NOISE = Check("noisy", "suspect", "other processes took 9%")


def file(size: int) -> Written:
    return Written("rank-0000.jsonl", size, f"{size:064}")


def test_suspicions_stay_with_the_first_attempt_that_had_them() -> None:
    found = EarlierAttempts().with_attempt("attempt-1", [DRIFT, QUIET[1]], [file(10)])
    found = found.with_attempt("attempt-2", [Check("drift", "suspect", "again"), NOISE], [file(20)])
    found = EarlierAttempts(**json.loads(json.dumps(asdict(found))))
    assert {check.name: check.detail for check in found.merged_with(QUIET)} == {
        "drift": "attempt-1: slower from step 3 on",
        "noisy": "attempt-2: other processes took 9%",
    }
    assert {name: each["size"] for name, each in found.records.items()} == {
        "attempt-1/rank-0000.jsonl": 10,
        "attempt-2/rank-0000.jsonl": 20,
    }


def test_what_the_last_attempt_found_itself_is_not_replaced() -> None:
    found = EarlierAttempts().with_checks("attempt-1", [DRIFT])
    for verdict in ("suspect", "invalid"):
        own = Check("drift", verdict, "its own")
        assert found.merged_with([own, QUIET[1]]) == [own, QUIET[1]]

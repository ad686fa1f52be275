"""From which checkpoint a new attempt resumes, on folders made by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.core.versioned_json import with_digest
from gnnhpc.records.choose_resume_point import (
    CHECKPOINT_VERSION,
    EarlierAttempts,
    digests,
    find_resume_point,
)
from gnnhpc.records.schema import Check
from tests.records.test_schema import RESULT

HERE = {"code": "a", "torch": "2", "threads of rank 0": 1}


@pytest.fixture
def cell(tmp_path: Path) -> CellPaths:
    return CellPaths(tmp_path / "cell")


def attempt(
    cell: CellPaths, *steps: int, status: str | None = "failed", **changes: Any
) -> AttemptPaths:
    """One that left these checkpoints, and a result unless its status is none."""
    claimed = cell.claim_attempt()
    for step in steps:
        folder = claimed.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "__0_0.distcp").write_bytes(bytes(range(100)))
        facts = {
            "version": CHECKPOINT_VERSION,
            "step": step,
            "tested": step // 10,
            "balance": [2, 1],
            "environment": HERE | changes,
            "earlier": asdict(EarlierAttempts()),
            "files": digests(folder),
        }
        (folder / "metadata.json").write_text(json.dumps(with_digest(facts)))
    if status is not None:
        replace(RESULT, status=status).write(claimed.result)  # type: ignore[arg-type]
    return claimed


def resume_point(cell: CellPaths) -> tuple[int, int, int] | None:
    """Attempt, step and evaluations that a new attempt resumes from."""
    found, _ = find_resume_point(cell, cell.claim_attempt(), HERE)
    return None if found is None else (found.attempt, found.step, found.test_steps_done)


@pytest.mark.parametrize("status", ["interrupted", None])
def test_the_newest_checkpoint_of_an_attempt_that_did_not_finish(
    cell: CellPaths, status: str | None
) -> None:
    attempt(cell, 5, 10, 100, status=status)
    assert resume_point(cell) == (1, 100, 10)


def test_a_finished_attempt_is_measured_again_from_the_start(cell: CellPaths) -> None:
    attempt(cell, 20)
    attempt(cell, 29, status="done")
    assert resume_point(cell) is None
    attempt(cell, 7)
    assert resume_point(cell) == (4, 7, 0)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metadata.json", b"{"),
        ("metadata.json", b'{"version": 99, "step": 1, "tested": 0}'),
        ("__0_0.distcp", bytes(100)),
        ("__0_0.distcp", None),
    ],
    ids=range(4),
)
def test_a_damaged_checkpoint_is_skipped(cell: CellPaths, file: str, content: bytes | None) -> None:
    left = attempt(cell, 10, 20)
    (left.checkpoints / ".step-00000030.partial").mkdir()
    damaged = left.checkpoints / "step-00000020" / file
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    found, (line,) = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found is not None
    assert (found.attempt, found.step) == (1, 10)
    assert line.startswith("checkpoint attempt-1/step-00000020 is skipped: it is ")


def test_an_older_checkpoint_that_fits_is_taken_before_a_newer_one_that_does_not(
    cell: CellPaths,
) -> None:
    """As where a job alternates between two makes of nodes."""
    attempt(cell, 20)
    attempt(cell, 5, **{"threads of rank 0": 2, "pymetis": "3"})
    found, (line,) = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found is not None
    assert (found.attempt, found.step) == (1, 20)
    assert line == (
        "checkpoint attempt-2/step-00000005 is skipped: pymetis 3 there, none here; "
        "threads of rank 0 2 there, 1 here"
    )


def test_nobody_resumes_from_an_attempt_that_was_wrong(cell: CellPaths) -> None:
    left = attempt(cell, 10)
    wrong = Check("replica parameters", "invalid", "rank 1 has others")
    replace(RESULT, status="failed", audit=[wrong]).write(left.result)
    found, (line,) = find_resume_point(cell, cell.claim_attempt(), HERE)
    assert found is None
    assert line.endswith("its attempt is invalid, replica parameters: rank 1 has others")

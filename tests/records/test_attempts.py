"""The attempt that counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.attempts import Attempt, choose_attempt
from gnnhpc.records.schema import Check
from tests.records.test_schema import RESULT

RESULTS = {
    "valid": RESULT,
    "done": replace(RESULT, audit=[Check("edges", "invalid", "")]),
    "failed": replace(RESULT, status="failed"),
}


@pytest.mark.parametrize(
    ("attempts", "number"),
    [
        ("", None),
        ("failed", 1),
        ("valid failed", 1),
        ("valid done", 1),
        ("done unfinished", 1),
        ("valid valid", 2),
        ("failed damaged", 2),
    ],
)
def test_the_newest_valid_then_the_newest_done_counts(attempts: str, number: int | None) -> None:
    made = [
        Attempt(AttemptPaths(Path(f"attempt-{n}")), RESULTS.get(name), name * (name == "damaged"))
        for n, name in enumerate(attempts.split(), 1)
    ]
    chosen = choose_attempt(made)
    assert (chosen and chosen.number) == number

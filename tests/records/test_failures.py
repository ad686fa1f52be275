"""How an attempt ends: the first failure among those of the ranks, and one result, never two."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records import failures as attempt_module
from gnnhpc.records.failures import find_first_failure, line_of_user, write_failure
from gnnhpc.records.result_file import Result, write_result_once
from gnnhpc.records.schema import Failure
from tests.records.test_schema import RESULT

HOSTS = ["n1", "n1", "n2", "n2"]
LOST = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:7"


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptPaths:
    monkeypatch.setattr(attempt_module, "SETTLE_S", 0.05)
    (tmp_path / "attempt-1").mkdir()
    return AttemptPaths(tmp_path / "attempt-1")


def failure(rank: int, error: str, second: int, step: int | None = 4) -> Failure:
    return Failure(rank, HOSTS[rank], step, "train", error, f"2026-03-01T09:00:{second:02}.000")


def cause(attempt: AttemptPaths, *left: Failure, own: Failure | None = None) -> Failure:
    for one in left:
        write_failure(attempt, one, by=one.rank)
    return find_first_failure(attempt, 4, HOSTS, own or left[-1])


def test_the_earliest_that_is_no_consequence(attempt: AttemptPaths) -> None:
    real = failure(2, "ValueError: planted", 5)
    later = failure(3, "AssertionError: because of that", 6)
    assert cause(attempt, failure(0, LOST, 1), failure(1, LOST, 7), later, real) == real


def test_a_rank_without_a_failure_while_the_others_only_lost_its_connection(
    attempt: AttemptPaths,
) -> None:
    found = cause(
        attempt, failure(0, LOST, 3, step=9), failure(1, LOST, 2, step=8), failure(3, LOST, 4)
    )
    assert (found.rank, found.host) == (2, "n2")
    assert found.error == "ended without an error message: killed, or out of memory"
    assert (found.step, found.at) == (8, "2026-03-01T09:00:02.000"), (
        "as of the first that lost the connection"
    )


def test_the_line_of_a_users_code_is_the_last_one_outside_of_libraries() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    line = caught.tb.tb_lineno
    assert line_of_user(caught.value) == f"test_failures.py, line {line}"
    assert line_of_user(ValueError("never raised")) is None


def test_of_many_ranks_that_write_a_result_at_once_one_does(attempt: AttemptPaths) -> None:
    results = [replace(RESULT, train_steps=rank) for rank in range(8)]
    with ThreadPoolExecutor(8) as ranks:
        wrote = list(ranks.map(lambda result: write_result_once(attempt, result), results))
    assert sum(wrote) == 1
    assert Result.read(attempt.result).train_steps == wrote.index(True)
    assert [path.name for path in attempt.root.iterdir()] == ["result.json"]

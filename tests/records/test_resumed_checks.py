"""What attempts that go on take over of those before."""

from __future__ import annotations

import json

from gnnhpc.records.record_writer import Written
from gnnhpc.records.resume_points import EarlierAttempts
from gnnhpc.records.schema import Check

QUIET = [Check("drift", "ok", "no stretch differs"), Check("noisy", "ok", "no other process")]
DRIFT = Check("drift", "suspect", "slower from step 3 on")
NOISE = Check("noisy", "suspect", "other processes took 9%")


def file(size: int) -> Written:
    return Written("rank-0000.jsonl", size, f"{size:064}", 1.0)


def test_suspicions_stay_with_the_first_attempt_that_had_them() -> None:
    found = EarlierAttempts().with_attempt("attempt-1", [DRIFT, QUIET[1]], [file(10)])
    found = found.with_attempt("attempt-2", [Check("drift", "suspect", "again"), NOISE], [file(20)])
    found = EarlierAttempts.from_metadata(json.loads(json.dumps(found.to_metadata())))
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


def test_a_check_that_the_last_attempt_did_not_make_is_reported() -> None:
    found = EarlierAttempts().with_checks("attempt-1", [DRIFT])
    assert found.merged_with([QUIET[1]])[-1].verdict == "suspect"

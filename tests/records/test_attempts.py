"""The attempt that counts, and the attempts that it resumed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gnnhpc.records.attempts import choose_attempt


@dataclass(frozen=True)
class Tried:
    number: int
    status: str
    valid: bool = False


@pytest.mark.parametrize(
    ("attempts", "number"),
    [
        ([], None),
        ([Tried(1, "failed")], 1),
        ([Tried(1, "done", True), Tried(2, "failed")], 1),
        ([Tried(1, "done", True), Tried(2, "done")], 1),
        ([Tried(1, "done"), Tried(2, "unfinished")], 1),
        ([Tried(1, "done", True), Tried(2, "done", True)], 2),
        ([Tried(1, "failed"), Tried(2, "damaged")], 2),
    ],
)
def test_newest_valid_then_newest_done_then_newest_counts(
    attempts: list[Tried], number: int | None
) -> None:
    chosen = choose_attempt(attempts)
    assert (None if chosen is None else chosen.number) == number

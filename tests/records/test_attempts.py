"""The attempt that counts, and the attempts that it resumed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


TRIED = st.builds(
    Tried, st.just(0), st.sampled_from(["done", "failed", "unfinished", "damaged"]), st.booleans()
)


@given(st.lists(TRIED, max_size=4))
def test_choice_does_not_depend_on_the_order(attempts: list[Tried]) -> None:
    numbered = [Tried(i, one.status, one.valid) for i, one in enumerate(attempts, 1)]
    chosen = {choose_attempt(order) for order in itertools.permutations(numbered)}
    assert len(chosen) == 1

"""Like with like: what differs is said, what is unknown is no difference, groups hold together."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.across.likeness import (
    alike,
    differences,
    in_words,
    joined_facts,
    like_groups,
    values_in_words,
)

facts = st.fixed_dictionaries(
    {name: st.sampled_from([None, "1", "2"]) for name in ("code", "threads", "torch")}
)


def test_a_difference_is_said_in_words() -> None:
    mine = {"code": "aaa", "threads a rank": "1", "torch": None}
    other = {"code": "aaa", "threads a rank": "2", "torch": "2.13.0", "new": "x"}
    assert in_words(mine, other) == "threads a rank 1 beside 2"
    assert differences(other, mine) == {"threads a rank": ("2", "1")}
    assert alike(mine, {})


@settings(deadline=None)
@given(st.lists(facts, min_size=1, max_size=8))
def test_groups_are_a_partition_whose_members_are_alike(given: list[dict[str, str | None]]) -> None:
    groups = like_groups(given, [str(n) for n in range(len(given))])
    assert sorted(i for group in groups for i in group) == list(range(len(given)))
    for group in groups:
        assert all(alike(given[a], given[b]) for a, b in itertools.combinations(group, 2))
        assert all(alike(given[i], joined_facts([given[j] for j in group])) for i in group)
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)


def test_the_largest_group_comes_first_and_of_equal_ones_the_newest() -> None:
    one, two = {"threads": "1"}, {"threads": "2"}
    assert like_groups([one, two, two], ["c", "a", "b"])[0] == [1, 2]
    assert like_groups([one, two], ["2026-02", "2026-01"])[0] == [0]
    assert like_groups([one, two], ["2026-01", "2026-02"])[0] == [1]


def test_an_unknown_brings_no_two_values_together() -> None:
    known, other, unknown = {"threads": "1"}, {"threads": "2"}, {"threads": None}
    groups = like_groups([known, unknown, other], ["a", "b", "c"])
    assert len(groups) == 2
    assert {len(group) for group in groups} == {1, 2}


def test_values_say_how_many_cells_have_them_and_how_many_do_not_say() -> None:
    assert values_in_words(["2", "2"]) == "2"
    assert values_in_words(["2", "1", "2"]) == "2 (2), 1 (1)"
    assert values_in_words(["2", None]) == "2, not recorded in 1 of 2 cells"

"""Names of runs and lists of indices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices, parse_indices
from jobs.cluster.site import time_limit_minutes
from jobs.spec.run_name import check_run_name


@given(st.sets(st.integers(0, 5000), min_size=1))
def test_indices_survive_being_written_as_slurm_writes_them(indices: set[int]) -> None:
    assert parse_indices(format_indices(indices)) == sorted(indices)


def test_neighbours_are_written_as_ranges() -> None:
    assert format_indices([7, 3, 5, 6]) == "3,5-7"


@pytest.mark.parametrize(
    "text", ["", "3-", "7-5", "a", "1,,2", "-1", "1;2", "3.5", "0-99999999999"]
)
def test_what_is_no_list_of_indices_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_indices(text)


@pytest.mark.parametrize(
    "name", ["plain", "with space", "it's", 'say "hi"', "Größe-1", "a.b", "#1"]
)
def test_names_that_can_be_quoted_are_taken(name: str) -> None:
    assert check_run_name(name, "--name") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "-a", ".a", " a", "a ", "a%j", "a\\b", "a\nb", "a\x00", "x" * 121],
)
def test_names_that_break_paths_or_slurm_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_run_name(name, "--name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30),
        ("1:30", 2),
        ("02:00:00", 120),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("2-00:00:01", 2881),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, expected: int) -> None:
    assert time_limit_minutes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "1h", "1:2:3:4", "-5", "a-1", "1-"])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        time_limit_minutes(text)

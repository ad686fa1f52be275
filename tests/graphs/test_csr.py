"""Pieces of neighbouring rows, none too large that could be smaller."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.csr import offsets, pieces


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_pieces_are_neighbouring_rows_of_few_entries(lengths: list[int], most: int) -> None:
    indptr = offsets(np.array(lengths, dtype=np.int64))
    found = pieces(indptr, most)
    assert [row for rows, _ in found for row in range(rows.start, rows.stop)] == list(
        range(len(lengths))
    )
    for rows, entries in found:
        assert (entries.start, entries.stop) == (indptr[rows.start], indptr[rows.stop])
        assert entries.stop - entries.start <= most or rows.stop - rows.start == 1
    for (_, one), (rows, two) in itertools.pairwise(found):
        assert one.stop - one.start + lengths[rows.start] > most, "the next row fits in as well"
        assert two.start == one.stop

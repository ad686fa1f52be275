"""Rows of different lengths in one array, compared with lists of lists; pieces of
neighbouring rows, none too large that could be smaller; and blocks of edges."""

from __future__ import annotations

import itertools
from itertools import accumulate

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.csr import offsets, pieces, segments

counts = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(counts, st.data())
def test_segments_are_the_places_of_all_entries_of_some_rows(
    lengths: list[int], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    starts = list(accumulate(lengths, initial=0))
    places, found = segments(np.array(starts), np.array(rows, dtype=np.int64))
    assert places.tolist() == [p for row in rows for p in range(starts[row], starts[row + 1])]
    assert found.tolist() == [lengths[row] for row in rows]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=15),
    st.integers(7, 9),
)
def test_a_transpose_has_the_edges_of_each_source_in_order(
    edges: list[tuple[int, int]], rows_in: int
) -> None:
    ordered = sorted(edges, key=lambda edge: edge[0])
    target = torch.tensor([t for t, _ in ordered], dtype=torch.int64)
    source = torch.tensor([s for _, s in ordered], dtype=torch.int64)
    indptr = torch.from_numpy(offsets(np.bincount(target.numpy(), minlength=4)))
    block = Block(indptr, source, target, torch.arange(len(edges)), rows_in)
    assert block.rows_out == 4
    assert block.edge_index.tolist() == [source.tolist(), target.tolist()]
    transpose = block.transpose
    assert len(transpose.indptr) == rows_in + 1
    for row in range(rows_in):
        first, last = transpose.indptr[row], transpose.indptr[row + 1]
        expected = [number for number, (_, s) in enumerate(ordered) if s == row]
        assert transpose.edge[first:last].tolist() == expected
        assert transpose.target[first:last].tolist() == [ordered[n][0] for n in expected]


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

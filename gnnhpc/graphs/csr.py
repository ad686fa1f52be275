"""Rows of different lengths stored in one array with start offsets (CSR): pure functions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def segments(indptr: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Positions of all entries of `rows` in a CSR store, row after row, and the rows' lengths."""
    lengths = indptr[rows + 1] - indptr[rows]
    starts = offsets(lengths)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return np.repeat(indptr[rows], lengths) + within, lengths


def offsets(counts: Ids) -> Ids:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def pieces(indptr: Ids, most: int) -> list[tuple[slice, slice]]:
    """Neighbouring rows of a CSR store with at most `most` entries together, and those entries.

    A row that has more is a piece by itself.
    """
    found: list[tuple[slice, slice]] = []
    start, rows = 0, len(indptr) - 1
    while start < rows:
        fitting = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
        stop = min(max(fitting, start + 1), rows)
        found.append((slice(start, stop), slice(int(indptr[start]), int(indptr[stop]))))
        start = stop
    return found

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

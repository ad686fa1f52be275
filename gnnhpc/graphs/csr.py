"""Rows of different lengths in one array, as start offsets say: pure functions of arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def segments(indptr: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Places of all entries of `rows` in a CSR store, one row after the other, and the lengths."""
    lengths = indptr[rows + 1] - indptr[rows]
    starts = offsets(lengths)
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return np.repeat(indptr[rows], lengths) + within, lengths


def offsets(counts: Ids) -> Ids:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))

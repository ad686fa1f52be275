"""Sums and maxima over sorted segments in torch, some rows at a time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

# Numbers of a piece's largest tensor, edges x width: to fit in a core's cache, or to fill a GPU
# without filling its memory.
PIECE_CPU = 2**20
PIECE_GPU = 2**27


def of_rows(values: Tensor, starts: Tensor, how: Literal["sum", "max"]) -> Tensor:
    """Each row's sum or largest of `values` [edges, ...], whose rows begin at `starts`."""
    initial = 0 if how == "sum" else None
    return torch.segment_reduce(values, how, offsets=starts, axis=0, unsafe=True, initial=initial)


def starts(indptr: Tensor, rows: slice) -> Tensor:
    """The place at which the entries of each of some rows begin among theirs, int64 [rows + 1]."""
    return (indptr[rows.start : rows.stop + 1] - indptr[rows.start]).long()


def most_edges(x: Tensor, width: int) -> int:
    """Edges of a piece, where each has `width` numbers on the device of `x`."""
    numbers = PIECE_CPU if x.device.type == "cpu" else PIECE_GPU
    return max(1, numbers // width)

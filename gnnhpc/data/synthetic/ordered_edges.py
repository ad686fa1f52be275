"""Edges in the order that every graph has: by target, then by source, each once, without loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.data.splits import Ints

Arrays = dict[str, npt.NDArray[Any]]
"""A graph as its reader or generator gives it: int64 `labels` [nodes] and `edges` [2, E]; bool
`train`, `val` and `test` [nodes] where a split is published; float32 `dense` [nodes, F] or the CSR
rows `indptr`, `columns` and `values` where features are not made up; float32 `edge_weight` [E]
where edges have weights."""


def distinct(keys: Ints) -> Ints:
    """The sorted keys, each once; `numpy.unique` hashes, which takes sixty times as long."""
    ordered = np.sort(keys)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def ordered_edges(source: Ints, target: Ints, nodes: int, *, both: bool = False) -> Ints:
    """int64 [2, E] sorted by (target, source), each edge once; with `both` also its reverse."""
    if both:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    key = distinct((target * nodes + source)[source != target])
    return np.stack([key % nodes, key // nodes])

"""The features of some of a graph's nodes, as the first layer's input."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.csr import offsets, segments
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows

Rows = Tensor | SparseRows | IndexedRows


def take_rows(x: Rows, places: Tensor) -> Rows:
    """The rows of `x` at `places`, int64 [n], each from 0 on."""
    if isinstance(x, Tensor):
        return x.index_select(0, places)
    if isinstance(x, IndexedRows):
        return IndexedRows(x.features, x.nodes[places])
    entries, lengths = segments(x.indptr.numpy(), places.numpy())
    at = torch.from_numpy(entries)
    indptr = torch.from_numpy(offsets(lengths))
    return SparseRows(indptr, x.columns[at], x.values[at], x.entries[at], x.width)


def feature_rows(features: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor | SparseRows:
    """The rows of `nodes` (int64 [n], zeros where -1) of a graph's features [nodes, F].

    Dense if the features are dense, else `SparseRows`.
    """
    ids = nodes.numpy()
    real = torch.from_numpy(np.flatnonzero(ids >= 0))
    width = features.shape[1]
    if features.layout != torch.sparse_csr:
        if len(real) == len(ids):
            return features.index_select(0, nodes).to(dtype)
        dense = torch.zeros(len(ids), width, dtype=dtype)
        dense[real] = features[nodes[real]].to(dtype)
        return dense
    places, lengths = segments(features.crow_indices().numpy(), ids[real.numpy()])
    counts = np.zeros(len(ids), dtype=np.int64)
    counts[real.numpy()] = lengths
    entries = torch.from_numpy(places)
    return SparseRows(
        indptr=torch.from_numpy(offsets(counts)),
        columns=features.col_indices()[entries].to(torch.int64),
        values=features.values()[entries].to(dtype),
        entries=entries,
        width=width,
    )

"""Products of stored features in torch, on any device to the same bits each time.

The product that torch has of its CSR tensors is cuSPARSE's on a GPU, which adds in another order
from one call to the next (cuSPARSE's documentation of `cusparseSpMM`: of CSR only its third
algorithm is deterministic, and torch takes another). Here each row's stored values are added in
their order.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from gnnhpc.graphs.node_features import SparseRows


def sparse_forward(rows: SparseRows, weight: Tensor) -> Tensor:
    """rows [n, F] @ weight [F, D]."""
    return _sums(rows.indptr, rows.columns, rows.values, weight)


def sparse_backward(rows: SparseRows, upstream: Tensor) -> Tensor:
    """Transposed rows [F, n] @ upstream [n, D]."""
    by_column = rows.by_column
    values = rows.values[by_column.place]
    return _sums(by_column.indptr, by_column.row, values, upstream.contiguous())


def _sums(indptr: Tensor, index: Tensor, values: Tensor, of: Tensor) -> Tensor:
    """Each segment's sum of the rows of `of` that it names, times its values."""
    return functional.embedding_bag(
        index.long(),
        of,
        indptr.long(),
        mode="sum",
        per_sample_weights=values.to(of.dtype),
        include_last_offset=True,
    )

"""Products of stored features are those of the dense ones, rows and columns without values too."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels import sparse_torch


def stored(dense: torch.Tensor) -> SparseRows:
    rows, columns = dense.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(dense))
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return SparseRows(
        indptr, columns, dense[rows, columns], torch.arange(len(rows)), dense.shape[1]
    )


@given(
    st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.floats(0, 1), st.integers(0, 99)
)
def test_products_are_those_of_dense_rows(
    rows: int, width: int, outputs: int, share: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=draw)

    kept = torch.rand((rows, width), generator=draw) < share
    dense = torch.where(kept, rand(rows, width), 0.0)
    x, weight, upstream = stored(dense), rand(width, outputs), rand(rows, outputs)
    torch.testing.assert_close(sparse_torch.sparse_forward(x, weight), dense @ weight)
    torch.testing.assert_close(sparse_torch.sparse_backward(x, upstream), dense.t() @ upstream)


def test_columns_are_sorted_once_for_all_values_at_the_same_positions() -> None:
    x = stored(torch.eye(4))
    dropped = x.with_values(2 * x.values)
    assert dropped.with_values(x.values).by_column is x.by_column
    assert dropped.to("cpu").by_column is not x.by_column

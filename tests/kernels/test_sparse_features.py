"""Products of stored features, and of dense ones after dropout, are those of the dense rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.dropout_mask import layer_mask
from gnnhpc.kernels.sparse_features import DroppedRows
from gnnhpc.models.layers.linear import project
from tests.tools.backends import computed_by, has_kernel, needs_compiler


def stored(dense: torch.Tensor) -> SparseRows:
    rows, columns = dense.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(dense))
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return SparseRows(
        indptr, columns, dense[rows, columns], torch.arange(len(rows)), dense.shape[1]
    )


@given(
    st.integers(1, 12), st.integers(1, 9), st.integers(1, 70), st.floats(0, 1), st.integers(0, 99)
)
def test_products_are_those_of_dense_rows(
    rows: int, width: int, outputs: int, share: float, seed: int
) -> None:
    """Rows and columns without values among them."""
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=draw)

    kept = torch.rand((rows, width), generator=draw) < share
    dense = torch.where(kept, rand(rows, width), 0.0)
    x, weight, upstream = stored(dense), rand(outputs, width), rand(rows, outputs)
    for code in ("c++", "torch") if has_kernel("sparse_features") else ("torch",):
        with computed_by(code):  # type: ignore[arg-type]
            given = weight.clone().requires_grad_()
            found = project(x, given)
            found.backward(upstream)
        torch.testing.assert_close(found, dense @ weight.t())
        torch.testing.assert_close(given.grad, upstream.t() @ dense)


def dropped(rows: int, features: int, dtype: torch.dtype) -> DroppedRows:
    x = torch.randn(rows, features, dtype=dtype, generator=torch.Generator().manual_seed(1))
    # Rows of the full graph in any order, the last a padding row.
    ids = torch.arange(rows).flip(0) * 3 - 3
    x[ids < 0] = 0
    return DroppedRows(x, ids, layer_mask(5, 2, "layer0.dropout", 0.6))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 15, 37, 500])
@pytest.mark.parametrize("width", [1, 7, 64, 75])
def test_it_is_dropout_and_then_the_product(width: int, features: int, dtype: torch.dtype) -> None:
    rows = dropped(23, features, dtype)
    draw = torch.Generator().manual_seed(2)
    weight = torch.randn(width, features, dtype=dtype, generator=draw, requires_grad=True)
    upstream = torch.randn(23, width, dtype=dtype, generator=draw)
    expected = rows.to_dense() @ weight.detach().t()
    found = project(rows, weight)
    found.backward(upstream)
    tolerance = {"rtol": 0, "atol": 64 * features**0.5 * torch.finfo(dtype).eps}
    torch.testing.assert_close(found.detach(), expected, **tolerance)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, upstream.t() @ rows.to_dense(), **tolerance)

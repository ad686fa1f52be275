"""Dense features that dropout has yet to be applied to, as the first layer's output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gnnhpc.graphs.node_features import computed
from gnnhpc.kernels import gat
from gnnhpc.kernels.mask import Mask

FEW_OUTPUTS = 32
"""Up to so many the product multiplies rows as they are, several at once; with more it sorts out
the entries that dropout leaves. `dropped_products.h` has the same number."""


@dataclass(frozen=True)
class DroppedRows:
    """Dropout of some features, which the product that comes next applies while it reads.

    Written out, features are as large as all else of a step, and half of them zeros. Row i is row
    `at[i]` of `x` [n, F], which is contiguous, or row i, and row `rows[i]` of the full graph.
    `x` needs no gradient, and may be kept in half precision.
    """

    x: Tensor
    rows: Tensor
    mask: Mask | None
    """Without one nothing is dropped."""
    at: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.x.shape[1]

    @property
    def scale(self) -> float:
        return 1.0 if self.mask is None else self.mask.scale

    def to_dense(self) -> Tensor:
        """A copy, [rows, F]."""
        taken = computed(self.x if self.at is None else self.x.index_select(0, self.at))
        return taken if self.mask is None else gat.drop_rows(taken, self.rows, self.mask)

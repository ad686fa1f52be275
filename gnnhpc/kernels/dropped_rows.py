"""Dense features that dropout has yet to be applied to, as the first layer's output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gnnhpc.kernels import gat
from gnnhpc.kernels.mask import Mask


@dataclass(frozen=True)
class DroppedRows:
    """Dropout of `x` [n, F], which the product that comes next applies while it reads.

    Written out, features are as large as all else of a step, and half of them zeros. Row i is row
    `rows[i]` of the full graph. `x` needs no gradient.
    """

    x: Tensor
    rows: Tensor
    mask: Mask

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)

    def to_dense(self) -> Tensor:
        return gat.drop_rows(self.x, self.rows, self.mask)

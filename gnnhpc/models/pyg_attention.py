"""What our uses of PyG's attention layers share: our dropout, for equal masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.mask import number_entries
from gnnhpc.models.attention import AttentionSettings
from gnnhpc.models.context import Context


class MaskedAttention:
    """Mixed into an attention layer of PyG's, over a chunk's block: that has one self-loop a node,
    as PyG would add.

    PyG reads the names of `edge_update`'s arguments, so that each layer has its own, which gives
    its softmax to `masked`.
    """

    heads: int
    training: bool

    def __init__(self, settings: AttentionSettings) -> None:
        options: dict[str, Any] = {"concat": not settings.average, "add_self_loops": False}
        sizes: tuple[Any, ...] = (settings.inputs, settings.channels, settings.heads)
        super().__init__(*sizes, **options)
        self.settings = settings
        self._kept: Tensor | None = None

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        rows = x.to_dense()
        self._kept = None
        if mask is not None:
            self._kept = mask.weights(number_entries(block.edge, self.heads), rows.dtype)
        pair = (rows, rows[: block.rows_out])
        out: Tensor = super().forward(pair, block.edge_index)  # type: ignore[misc]
        return out

    def masked(self, alpha: Tensor) -> Tensor:
        """Our mask in place of a random one."""
        return alpha if self._kept is None else alpha * self._kept

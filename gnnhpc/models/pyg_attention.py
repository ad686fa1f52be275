"""What our uses of PyG's attention layers share: our dropout, for equal masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.mask import number_entries
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import active_mask


class MaskedAttention:
    """Mixed into an attention layer of PyG's, over a chunk's block: that has one self-loop a node,
    as PyG would add.

    Arguments are those of `AttentionLayer` in our form. PyG reads the names of `edge_update`'s
    arguments, so that each layer has its own, which gives its softmax to `masked`.
    """

    heads: int
    training: bool

    def __init__(
        self,
        name: str,
        attention: int,
        inputs: int,
        channels: int,
        heads: int,
        *,
        average: bool,
        dropout: float,
    ) -> None:
        options: dict[str, Any] = {"concat": not average, "add_self_loops": False}
        super().__init__(inputs, channels, heads, **options)  # type: ignore[call-arg]
        self.name, self.attention, self.attention_dropout = name, attention, dropout
        self._kept: Tensor | None = None

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block = context.chunk.blocks[self.attention]
        rows = x.to_dense()
        self._kept = None
        mask = active_mask(self.name, self.attention_dropout, self.training, context)
        if mask is not None:
            self._kept = mask.weights(number_entries(block.edge, self.heads), rows.dtype)
        pair = (rows, rows[: block.rows_out])
        out: Tensor = super().forward(pair, block.edge_index)  # type: ignore[misc]
        return out

    def masked(self, alpha: Tensor) -> Tensor:
        """Our mask in place of a random one."""
        return alpha if self._kept is None else alpha * self._kept

"""PyG's own GATv2Conv over a chunk's block, with our attention dropout, for equal masks."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import GATv2Conv

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.mask import number_entries
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import active_mask


class AttentionLayer(GATv2Conv):  # type: ignore[misc]
    """GATv2Conv; the block has one self-loop a node, as PyG would add.

    Arguments are those of gnnhpc.models.gatv2.fused.AttentionLayer.
    """

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
        super().__init__(inputs, channels, heads, concat=not average, add_self_loops=False)
        self.name, self.attention, self.attention_dropout = name, attention, dropout
        self._kept: Tensor | None = None

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block = context.chunk.blocks[self.attention]
        rows = x.to_dense()
        self._kept = None
        mask = active_mask(self.name, self.attention_dropout, self.training, context)
        if mask is not None:
            self._kept = mask.weights(number_entries(block.edge, self.heads), rows.dtype)
        out: Tensor = super().forward((rows, rows[: block.rows_out]), block.edge_index)
        return out

    def edge_update(
        self,
        x_j: Tensor,
        x_i: Tensor,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """The softmax as PyG computes it, then our mask in place of a random one."""
        alpha: Tensor = super().edge_update(x_j, x_i, edge_attr, index, ptr, dim_size)
        return alpha if self._kept is None else alpha * self._kept

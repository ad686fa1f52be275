"""PyG's own GATConv as the reference, with our attention dropout, for equal masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import GATConv

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.mask import number_entries
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import active_mask


class AttentionLayer(GATConv):  # type: ignore[misc]
    """GATConv over a chunk's block; the block has one self-loop a node, as PyG would add.

    Arguments are those of gnnhpc.models.gat.fused.AttentionLayer.
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
        x = x.to_dense()
        self._kept = None
        mask = active_mask(self.name, self.attention_dropout, self.training, context)
        if mask is not None:
            self._kept = mask.weights(number_entries(block.edge, self.heads), x.dtype)
        edges = torch.stack((block.source, block.target))
        out: Tensor = super().forward((x, x[: block.rows_out]), edges)
        return out

    def edge_update(
        self,
        alpha_j: Tensor,
        alpha_i: Tensor | None,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """The softmax as PyG computes it, then our mask in place of a random one."""
        alpha: Tensor = super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size)
        return alpha if self._kept is None else alpha * self._kept

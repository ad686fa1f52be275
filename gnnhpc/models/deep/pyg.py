"""Convolutions of deep networks as PyG has them, with our dropout, for equal masks.

Classes, arguments and parameters are those of `gnnhpc.models.deep.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import GCN2Conv

from gnnhpc.models.context import Context
from gnnhpc.models.convolutions import pyg
from gnnhpc.models.convolutions.pyg import edge_weights
from gnnhpc.models.deep.residual import PreActivated
from gnnhpc.models.dropout import masked_relu


class ResGcnLayer(PreActivated, pyg.GcnLayer):  # type: ignore[misc]
    """GCNConv in a block of its own."""


class GcniiLayer(GCN2Conv):  # type: ignore[misc]
    """GCN2Conv, with the weights that `cached=True` would keep: those of the graph as it is cut."""

    def __init__(
        self, name: str, hop: int, hidden: int, *, alpha: float, theta: float, dropout: float
    ) -> None:
        super().__init__(hidden, alpha, theta, hop + 1, normalize=False)
        self.name, self.hop, self.dropout = name, hop, dropout

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        h, first = x.tensor_split(2, dim=1)
        weights = edge_weights(context, block, x.dtype)
        out: Tensor = super().forward(h, first, block.edge_index, weights)[: block.rows_out]
        active = masked_relu(out, self.name, self.dropout, self.training, context)
        return torch.cat((active, first[: block.rows_out]), 1)

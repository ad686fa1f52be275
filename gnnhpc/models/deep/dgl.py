"""Convolutions of deep networks as DGL has them, with our dropout, for equal masks.

Classes, arguments and parameters are those of `gnnhpc.models.deep.fused`.
"""

from __future__ import annotations

import torch
from dgl.nn.pytorch import GCN2Conv
from torch import Tensor

from gnnhpc.models.context import Context
from gnnhpc.models.convolutions import dgl
from gnnhpc.models.deep.residual import PreActivated
from gnnhpc.models.dgl_parts import dgl_graph
from gnnhpc.models.dropout import masked_relu


class ResGcnLayer(PreActivated, dgl.GcnLayer):  # type: ignore[misc]
    """GraphConv in a block of its own."""


class GcniiLayer(GCN2Conv):  # type: ignore[misc]
    """GCN2Conv, which takes the weights of edges from the degrees of its graph's own nodes: that is
    right for a chunk without a halo only.
    """

    def __init__(
        self, name: str, hop: int, hidden: int, *, alpha: float, theta: float, dropout: float
    ) -> None:
        super().__init__(hidden, hop + 1, alpha, theta, allow_zero_in_degree=True, bias=False)
        self.name, self.hop, self.dropout = name, hop, dropout

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        h, first = x.tensor_split(2, dim=1)
        out: Tensor = super().forward(dgl_graph(block), h, first)
        active = masked_relu(out, self.name, self.dropout, self.training, context)
        return torch.cat((active, first), 1)

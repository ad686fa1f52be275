"""PyG's own convolutions over a chunk's block, in the form that most programs use: an edge_index.

Classes, arguments and parameters are those of `gnnhpc.models.convolutions.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.weights import degree_weights

Input = Tensor | SparseRows


class GcnLayer(pyg.GCNConv):  # type: ignore[misc]
    """GCNConv, with the weights that `cached=True` would keep: those of the graph as it is cut."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, add_self_loops=False, normalize=False)
        self.hop = hop

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        out: Tensor = self.propagate(
            block.edge_index,
            x=(self.lin(x.to_dense()), None),
            edge_weight=edge_weights(context, block, self.bias.dtype),
            size=(block.rows_in, block.rows_out),
        )
        out += self.bias
        return out


class _OfNeighbours:
    """Mixed into a convolution of PyG's that takes pairs of rows and no self-loops."""

    hop: int

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        rows = x.to_dense()
        pair = (rows, rows[: block.rows_out])
        out: Tensor = super().forward(pair, block.neighbours)  # type: ignore[misc]
        return out


class MeanSageLayer(_OfNeighbours, pyg.SAGEConv):  # type: ignore[misc]
    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.hop = hop


class MaxSageLayer(_OfNeighbours, pyg.SAGEConv):  # type: ignore[misc]
    def __init__(self, hop: int, inputs: int, outputs: int, *, pool: bool) -> None:
        super().__init__(inputs, outputs, aggr="max", project=pool)
        self.hop = hop


class GraphConvLayer(_OfNeighbours, pyg.GraphConv):  # type: ignore[misc]
    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.hop = hop


class GinLayer(_OfNeighbours, pyg.GINConv):  # type: ignore[misc]
    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        )
        self.hop = hop
        # A fixed eps is a setting, not part of what a run learns and saves.
        del self._buffers["eps"]
        self.eps = 0.0


def edge_weights(context: Context, block: Block, dtype: torch.dtype) -> Tensor:
    """GCN's weight of each edge, [edges], computed once."""
    name = f"gcn, {dtype}"
    if name not in block.kept:
        weights = degree_weights(context, block, dtype)
        assert weights.source is not None
        assert weights.target is not None
        block.kept[name] = weights.source[block.source] * weights.target[block.target]
    found: Tensor = block.kept[name]
    return found

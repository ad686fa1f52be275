"""PyG's own layers over a chunk's block, in the form that most programs use: an edge_index.

Classes have the names, arguments and parameters of the fused layers in `attention_layers`,
`convolution_layers` and `deep_layers`. Dropout is this project's, so that masks are equal. A
layer's `compute` is what PyG computes, of tensors alone, and what the setting `compile` compiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.dropout_mask import number_entries
from gnnhpc.models.layers import convolution_layers
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.dropout_layer import ReluDropout
from gnnhpc.models.model import Context

Input = Tensor | SparseRows


class _OfPairs:
    """Mixed into a layer of PyG's that takes pairs of rows: those of sources and of targets."""

    def compute(self, rows: Tensor, rows_out: int, edges: Tensor, *more: Tensor | None) -> Tensor:
        """PyG's layer of these edges [2, E]; `more` are weights or a dropout mask of them."""
        out: Tensor = super().forward((rows, rows[:rows_out]), edges, *more)  # type: ignore[misc]
        return out


class _Attention(_OfPairs):
    """Mixed into an attention layer of PyG's; a block has the self-loops that PyG would add.

    The dropout mask of a micro-batch is an argument, PyG's `edge_attr`, and not part of the layer:
    torch leaves a recomputed forward as soon as all saved tensors are there, and the layer could
    not forget a mask.
    """

    heads: int
    training: bool

    def __init__(self, settings: AttentionSettings) -> None:
        heads = settings.heads
        options: dict[str, Any] = {"concat": not heads.average, "add_self_loops": False}
        sizes: tuple[Any, ...] = (settings.inputs, heads.channels, heads.count)
        super().__init__(*sizes, **options)
        self.settings = settings

    def forward(self, x: Input, context: Context) -> Tensor:
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        rows, weights = x.to_dense(), None
        if mask is not None:
            weights = mask.weights(number_entries(block.edge, self.heads), rows.dtype)
        return self.compute(rows, block.rows_out, block.edge_index, weights)


def _masked(edge_update: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyG's softmax, times the dropout mask [edges, heads] that is in the place of `edge_attr`.

    It has the signature of PyG's function, by which PyG finds the arguments.
    """

    @functools.wraps(edge_update)
    def masked(self: Any, *, edge_attr: Tensor | None, **arguments: Any) -> Tensor:
        alpha = edge_update(self, edge_attr=None, **arguments)
        return alpha if edge_attr is None else alpha * edge_attr

    return masked


class GatLayer(_Attention, pyg.GATConv):  # type: ignore[misc]
    """GATConv."""

    edge_update = _masked(pyg.GATConv.edge_update)


class Gatv2Layer(_Attention, pyg.GATv2Conv):  # type: ignore[misc]
    """GATv2Conv."""

    edge_update = _masked(pyg.GATv2Conv.edge_update)


class GcnLayer(pyg.GCNConv):  # type: ignore[misc]
    """GCNConv, with the weights that `cached=True` would keep: those of the graph as it is cut."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, add_self_loops=False, normalize=False)
        self.hop = hop

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = edge_weights(context, block, self.bias.dtype)
        return self.compute(x.to_dense(), block.rows_out, block.edge_index, weights)

    def compute(self, rows: Tensor, rows_out: int, edge_index: Tensor, weights: Tensor) -> Tensor:
        """GCNConv of the rows [rows_in, inputs] -> [rows_out, outputs]."""
        messages = {"x": (self.lin(rows), None), "edge_weight": weights}
        out: Tensor = self.propagate(edge_index, size=(len(rows), rows_out), **messages)
        out += self.bias
        return out


class _OfNeighbours(_OfPairs):
    """Mixed into a convolution of PyG's that takes no self-loops."""

    takes_weights: ClassVar[bool] = False
    """Whether it takes weights of edges."""

    def __init__(self, hop: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.hop = hop

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        rows, weight = x.to_dense(), block.neighbour_weight if self.takes_weights else None
        weights = () if weight is None else (weight.to(rows.dtype),)
        return self.compute(rows, block.rows_out, block.neighbours, *weights)


class MeanSageLayer(_OfNeighbours, pyg.SAGEConv):  # type: ignore[misc]
    """SAGEConv."""


class MaxSageLayer(_OfNeighbours, pyg.SAGEConv):  # type: ignore[misc]
    """SAGEConv with `aggr="max"`."""

    def __init__(self, hop: int, inputs: int, outputs: int, *, pool: bool) -> None:
        super().__init__(hop, inputs, outputs, aggr="max", project=pool)


class GraphConvLayer(_OfNeighbours, pyg.GraphConv):  # type: ignore[misc]
    """GraphConv."""

    takes_weights = True


class GinLayer(_OfNeighbours, pyg.GINConv):  # type: ignore[misc]
    """GINConv with two linear layers."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        layers = nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs)
        super().__init__(hop, nn.Sequential(*layers))
        # A fixed eps is a setting, not part of what a run learns and saves.
        del self._buffers["eps"]
        self.eps = 0.0


class Preactivated:
    """Mixed into a library's GCN layer: norm, ReLU and dropout before it, a residual around it.

    This is the "res+" block of DeepGCNLayer, whose dropout would have other masks.
    """

    def __init__(self, name: str, hop: int, hidden: int, *, dropout: float) -> None:
        super().__init__(hop, hidden, hidden)  # type: ignore[call-arg]
        self.activation = ReluDropout(name, dropout, fused=False)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        active = self.activation(self.norm(x), context)
        out: Tensor = super().forward(active, context)  # type: ignore[misc]
        return out + x[: len(out)]


class ResGcnLayer(Preactivated, GcnLayer):  # type: ignore[misc]
    """GCNConv in a residual block."""


class GcniiLayer(pyg.GCN2Conv):  # type: ignore[misc]
    """GCN2Conv, with the weights that `cached=True` would keep: those of the graph as it is cut."""

    def __init__(
        self, name: str, hop: int, hidden: int, *, alpha: float, theta: float, dropout: float
    ) -> None:
        super().__init__(hidden, alpha, theta, hop + 1, normalize=False)
        self.hop, self.activation = hop, ReluDropout(name, dropout, fused=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        h, first = x.tensor_split(2, dim=1)
        weights = edge_weights(context, block, x.dtype)
        out = self.compute(h, first, block.rows_out, block.edge_index, weights)
        return torch.cat((self.activation(out, context), first[: block.rows_out]), 1)

    def compute(
        self, h: Tensor, first: Tensor, rows_out: int, edge_index: Tensor, weights: Tensor
    ) -> Tensor:
        """GCN2Conv of the rows and the first layer's."""
        out: Tensor = super().forward(h, first, edge_index, weights)
        return out[:rows_out]


class Pooling(convolution_layers.Pooling):
    """PyG's pooling over a vector that names each node's graph."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.pooling_block
        pool = pyg.global_mean_pool if self.how == "mean" else pyg.global_add_pool
        pooled: Tensor = pool(x, block.target, block.rows_out)
        return pooled


def edge_weights(context: Context, block: Block, dtype: torch.dtype) -> Tensor:
    """GCN's weight of each edge, [edges], computed once for a block."""
    name = f"gcn, {dtype}"
    if name not in block.kept:
        weights = convolution_layers.degree_weights(context, block, dtype)
        assert weights.source is not None
        assert weights.target is not None
        found = weights.source[block.source] * weights.target[block.target]
        block.kept[name] = found if weights.edge is None else found * weights.edge
    kept: Tensor = block.kept[name]
    return kept

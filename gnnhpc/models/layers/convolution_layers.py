"""Fused convolutions and pooling, whose products and sums move as few numbers as possible.

A sum over neighbours and a product with a matrix commute, so the sum is taken where rows are
narrower, before the product or after it. Parameters, names and initial values are PyG's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, dense_if_asked
from gnnhpc.kernels.aggregate import largest, sum_beside_own, sum_of_first_half, weighted_sum
from gnnhpc.kernels.neighbor_weights import NeighbourWeights
from gnnhpc.models.layers.linear import glorot, linear, project
from gnnhpc.models.model import Context

Input = Tensor | SparseRows | IndexedRows

NUMBER_FLOPS = 60.0
"""Operations of a product in the time that reading one number of a neighbour takes.

Measured were 144 GFLOP/s, and 10 GB/s of rows in any order."""


class GcnLayer(nn.Module):
    """Kipf & Welling 2017, equation 2: [rows_in, inputs] -> [rows_out, outputs]."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        glorot(self.lin.weight)

    def forward(self, x: Input, context: Context) -> Tensor:
        x = dense_if_asked(x)
        block = context.chunk.blocks[self.hop]
        weights = degree_weights(context, block, self.bias.dtype)
        if not isinstance(x, SparseRows) and sums_first(self.lin, self.hop, block):
            return linear(weighted_sum(x, block, weights), self.lin.weight, self.bias)
        return weighted_sum(project(x, self.lin.weight), block, weights, bias=self.bias)


class _WithRoot(nn.Module):
    """W_n (weighted sum over neighbours) + b + W_r x."""

    hop: int
    neighbours: str
    """The name of the linear layer with W_n and b."""
    root: str
    """The name of the linear layer with W_r."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.add_module(self.neighbours, nn.Linear(inputs, outputs))
        self.add_module(self.root, nn.Linear(inputs, outputs, bias=False))

    def weights(self, block: Block, dtype: torch.dtype) -> NeighbourWeights:
        raise NotImplementedError

    def forward(self, x: Input, context: Context) -> Tensor:
        x = dense_if_asked(x)
        block = context.chunk.blocks[self.hop]
        around: Any = self.get_submodule(self.neighbours)
        root: Any = self.get_submodule(self.root)
        weights = self.weights(block, around.weight.dtype)
        # One product of both weights, whose operands or results lie side by side.
        if not isinstance(x, SparseRows) and sums_first(around, self.hop, block):
            both = torch.cat((around.weight, root.weight), 1)
            return linear(sum_beside_own(x, block, weights), both, around.bias)
        both = torch.cat((around.weight, root.weight))
        return sum_of_first_half(project(x, both), around.bias, block, weights)


class MeanSageLayer(_WithRoot):
    """GraphSAGE's mean aggregator: Hamilton et al. 2017, algorithm 1."""

    neighbours, root = "lin_l", "lin_r"

    def weights(self, block: Block, dtype: torch.dtype) -> NeighbourWeights:
        return NeighbourWeights.mean(block.indptr.diff().to(dtype), block.rows_out)


class GraphConvLayer(_WithRoot):
    """Morris et al. 2019, as PyG's GraphConv: the sum over neighbours, times the edges' weights."""

    neighbours, root = "lin_rel", "lin_root"

    def weights(self, block: Block, dtype: torch.dtype) -> NeighbourWeights:
        return NeighbourWeights(edge=edge_weight(block, dtype))


class MaxSageLayer(nn.Module):
    """GraphSAGE with the largest of its neighbours' numbers: Hamilton et al. 2017, equation 3.

    With `pool` it is the largest of relu(W x + b), their pooling aggregator; without, of x itself.
    """

    def __init__(self, hop: int, inputs: int, outputs: int, *, pool: bool) -> None:
        super().__init__()
        self.hop = hop
        self.lin = nn.Linear(inputs, inputs) if pool else None
        self.lin_l = nn.Linear(inputs, outputs)
        self.lin_r = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        if self.lin is None:
            compared = x.to_dense()
        else:
            compared = functional.relu(project(x, self.lin.weight) + self.lin.bias)
        own = project(x, self.lin_r.weight)[: block.rows_out]
        return linear(largest(compared, block), self.lin_l.weight, self.lin_l.bias) + own


class GinLayer(nn.Module):
    """MLP(x + sum over neighbours): Xu et al. 2019, equation 4.1 with eps 0."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))

    def forward(self, x: Input, context: Context) -> Tensor:
        x = dense_if_asked(x)
        block = context.chunk.blocks[self.hop]
        first: Any = self.nn[0]
        last: Any = self.nn[2]
        weights = NeighbourWeights(own=1.0)
        if not isinstance(x, SparseRows) and sums_first(first, self.hop, block):
            hidden = linear(weighted_sum(x, block, weights), first.weight).add_(first.bias)
        else:
            hidden = weighted_sum(project(x, first.weight), block, weights, bias=first.bias)
        return linear(functional.relu(hidden, inplace=True), last.weight, last.bias)


def sums_first(product: nn.Linear, hop: int, block: Block) -> bool:
    """Whether summing over neighbours before the product takes less time than after it.

    For data (hop 0) the sum before the product has no backward, the sum after it has one. A sum
    leaves rows of the output only, and a sampled block has fewer of these.
    """
    inputs, outputs = product.in_features, product.out_features
    passes = 2 if hop == 0 else 3
    fewer_rows = 2.0 * passes * inputs * outputs * (block.rows_in - block.rows_out)
    edges = block.neighbour_count
    before, after = inputs * (1 if hop == 0 else 2), 2 * outputs
    return NUMBER_FLOPS * edges * (before - after) <= fewer_rows


def degree_weights(context: Context, block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """GCN's weights of edges, self-loops included.

    Where neighbours are sampled, a node's sampled edges stand for all its edges: the weights scale
    their mean to that of all.
    """
    chunk, edge = context.chunk, edge_weight(block, dtype)
    degree = chunk.degree if chunk.weighted_degree is None else chunk.weighted_degree
    weights = NeighbourWeights.normalised(degree[: block.rows_in].to(dtype), block.rows_out, edge)
    if not chunk.sampled:
        return weights
    assert weights.target is not None
    stands_for = chunk.degree[: block.rows_out].to(dtype) / block.indptr.diff()
    return dataclasses.replace(weights, target=weights.target * stands_for)


def edge_weight(block: Block, dtype: torch.dtype) -> Tensor | None:
    """The weights of a block's edges, [edges]; None for a graph without weights."""
    return None if block.edge_weight is None else block.edge_weight.to(dtype)


class Pooling(nn.Module):
    """[nodes, width] -> [graphs, width]: the mean or sum over each graph's nodes."""

    def __init__(self, how: Literal["mean", "sum"]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.pooling_block
        # Input and output rows are different things, so that no edge is a self-loop.
        weights = NeighbourWeights(loops=True)
        if self.how == "mean":
            weights = NeighbourWeights(target=1 / block.indptr.diff().to(x.dtype), loops=True)
        return weighted_sum(x, block, weights)

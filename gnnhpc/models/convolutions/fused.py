"""Convolutions in our form: products and neighbour sums in the order that moves fewer numbers.

A sum over neighbours and a product with a matrix commute, so the sum is taken where rows are
narrower, before the product or after it. Parameters, names and initial values are PyG's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.neighbours import (
    largest,
    relu_of_product,
    sum_beside_own,
    sum_of_first_half,
    weighted_sum,
)
from gnnhpc.models.convolutions.weights import degree_weights, mean_weights
from gnnhpc.models.later_weights import LeavesWeights
from gnnhpc.models.sparse_linear import linear, project

Input = Tensor | SparseRows | IndexedRows


class GcnLayer(LeavesWeights):
    """Kipf & Welling 2017, equation 2: [rows_in, inputs] -> [rows_out, outputs]."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        glorot(self.lin.weight)

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = degree_weights(context, block, self.bias.dtype)
        if not isinstance(x, SparseRows) and sums_first(self.lin, self.hop, block):
            return linear(weighted_sum(x, block, weights), self.lin.weight, self.bias)
        return weighted_sum(project(x, self.lin.weight), block, weights, bias=self.bias)


class _WithRoot(LeavesWeights):
    """W_n (sum over neighbours) + b + W_r x, where the sum's weights may be a mean's."""

    hop: int
    neighbours: str
    """Name of the linear layer with W_n and b."""
    root: str

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.add_module(self.neighbours, nn.Linear(inputs, outputs))
        self.add_module(self.root, nn.Linear(inputs, outputs, bias=False))

    def weights(self, block: Block, dtype: torch.dtype) -> NeighbourWeights:
        raise NotImplementedError

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        around, root = self.get_submodule(self.neighbours), self.get_submodule(self.root)
        assert isinstance(around, nn.Linear)
        assert isinstance(root, nn.Linear)
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
        return mean_weights(block, dtype)


class GraphConvLayer(_WithRoot):
    """Morris et al. 2019, as PyG's GraphConv: the plain sum over neighbours."""

    neighbours, root = "lin_rel", "lin_root"

    def weights(self, block: Block, dtype: torch.dtype) -> NeighbourWeights:
        return NeighbourWeights()


class MaxSageLayer(LeavesWeights):
    """GraphSAGE with the largest of its neighbours' numbers: Hamilton et al. 2017, equation 3.

    With `pool` it is that of relu(W x + b), their pooling aggregator; without, of x itself.
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
            given = x.to_dense()
        else:
            given = functional.relu(project(x, self.lin.weight) + self.lin.bias)
        own = project(x, self.lin_r.weight)[: block.rows_out]
        return linear(largest(given, block), self.lin_l.weight, self.lin_l.bias) + own


class GinLayer(LeavesWeights):
    """MLP(x + sum over neighbours): Xu et al. 2019, equation 4.1 with eps 0."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hop = hop
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        first, _, last = self.nn
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        weights = NeighbourWeights(own=1.0)
        if not isinstance(x, SparseRows) and sums_first(first, self.hop, block):
            product = linear(weighted_sum(x, block, weights), first.weight)
            hidden = relu_of_product(product, first.bias)
        else:
            hidden = weighted_sum(project(x, first.weight), block, weights, bias=first.bias)
            hidden = functional.relu(hidden, inplace=True)
        return linear(hidden, last.weight, last.bias)


_NUMBER_FLOPS = 60.0
"""Reading a neighbour's number takes as long as so many operations of a product: both measured at
about 144 GFLOP/s and 10 GB/s of rows that lie anywhere."""


def sums_first(product: nn.Linear, hop: int, block: Block) -> bool:
    """Whether to sum over neighbours before the product, which takes less time.

    Of data (hop 0) the sum before it has no backward, the one after it has. The sum leaves a
    block's rows of the output for the product, of which a sampled one has fewer.
    """
    inputs, outputs = product.in_features, product.out_features
    passes = 2 if hop == 0 else 3
    fewer_rows = 2.0 * passes * inputs * outputs * (block.rows_in - block.rows_out)
    edges = block.neighbour_count
    before, after = inputs * (1 if hop == 0 else 2), 2 * outputs
    return _NUMBER_FLOPS * edges * (before - after) <= fewer_rows


def glorot(weight: Tensor) -> None:
    bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
    nn.init.uniform_(weight, -bound, bound)

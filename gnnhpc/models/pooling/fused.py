"""The mean or sum over each graph's nodes in our form: one pass over rows that lie together."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.neighbours import weighted_sum

How = Literal["mean", "sum"]


class Pooling(nn.Module):
    """[nodes, width] -> [graphs, width]: a sum over neighbours, which are a graph's nodes."""

    def __init__(self, how: How) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.pooling_block
        # Row r of the input and row r of the output are of different things: no edge is a loop.
        weights = NeighbourWeights(loops=True)
        if self.how == "mean":
            weights = NeighbourWeights(target=1 / block.indptr.diff().to(x.dtype), loops=True)
        return weighted_sum(x, block, weights)

    def extra_repr(self) -> str:
        return self.how

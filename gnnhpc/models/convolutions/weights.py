"""The factors of a chunk's edges, from how many edges its nodes have in the graph as it is cut."""

from __future__ import annotations

import torch

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.context import Context


def degree_weights(context: Context, block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """GCN's, self-loops included."""
    degree = context.chunk.degree[: block.rows_in].to(dtype)
    return NeighbourWeights.normalised(degree, block.rows_out)


def mean_weights(block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """The mean's, self-loops left out."""
    degree = block.indptr.diff().to(dtype)
    return NeighbourWeights.mean(degree, block.rows_out)

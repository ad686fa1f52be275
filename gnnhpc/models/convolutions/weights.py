"""The factors of a chunk's edges, from how many edges its nodes have in the graph as it is cut."""

from __future__ import annotations

import dataclasses

import torch

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.context import Context


def degree_weights(context: Context, block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """GCN's, self-loops included.

    Where edges are drawn, those of a node stand for all of its edges: their mean is taken for that
    of all.
    """
    degree = context.chunk.degree[: block.rows_in].to(dtype)
    weights = NeighbourWeights.normalised(degree, block.rows_out)
    if not context.chunk.sampled:
        return weights
    assert weights.target is not None
    stands_for = degree[: block.rows_out] / block.indptr.diff()
    return dataclasses.replace(weights, target=weights.target * stands_for)


def mean_weights(block: Block, dtype: torch.dtype) -> NeighbourWeights:
    """The mean's, self-loops left out."""
    degree = block.indptr.diff().to(dtype)
    return NeighbourWeights.mean(degree, block.rows_out)

"""What the twin's graph layers share: products of stored features, sums over edges one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnnhpc.check.twin.scene import Scene, SparseInput, TwinGraph

COLUMNS = 32
"""Of messages along edges that are added up together."""


def graph_of(scene: Scene) -> TwinGraph:
    assert scene.graph is not None
    return scene.graph


def glorot(*shape: int) -> Tensor:
    bound = math.sqrt(6.0 / (shape[-2] + shape[-1]))
    return torch.empty(shape).uniform_(-bound, bound)


def product(x: Tensor | SparseInput, weight: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x @ weight
    places = torch.stack((x.row, x.column))
    rows = torch.sparse_coo_tensor(places, x.value, x.shape, check_invariants=False)
    product: Tensor = torch.sparse.mm(rows, weight)
    return product


def magnitude(x: Tensor | SparseInput) -> Tensor | SparseInput:
    if isinstance(x, Tensor):
        return x.abs()
    return SparseInput(x.row, x.column, x.value.abs(), x.shape)


def summed(x: Tensor, graph: TwinGraph, weights: Tensor | None = None) -> Tensor:
    """[nodes, D]: of each node the sum over its edges of x [nodes, D] where they begin.

    By each edge's weight [E, 1] if there are some. All messages at once, [E, D], would be the most
    of the memory that a close look takes: few columns' are there at a time.
    """
    sums = []
    for columns in x.split(COLUMNS, 1):
        messages = columns[graph.source]
        if weights is not None:
            messages = messages * weights
        zeros = messages.new_zeros(graph.nodes, messages.shape[1])
        sums.append(zeros.index_add(0, graph.target, messages))
    return torch.cat(sums, 1)


def without_loops(graph: TwinGraph) -> TwinGraph:
    kept = graph.source != graph.target
    edges = graph.source[kept], graph.target[kept], graph.number[kept]
    return TwinGraph(graph.nodes, *edges, graph.left_out, graph.sampled)


def normalised_weights(graph: TwinGraph, dtype: torch.dtype) -> Tensor:
    """1 / sqrt(d_i d_j) of each edge, [E, 1], self-loops counted: Kipf & Welling 2017, equation 2.

    Where edges are drawn, those of a node stand for all of its d: each counts d over how many
    there are.
    """
    degree = degrees(graph, dtype)
    weights = (degree[graph.source] * degree[graph.target]).rsqrt()
    if graph.sampled:
        drawn = torch.bincount(graph.target, minlength=graph.nodes).to(dtype)
        weights = weights * (degree / drawn)[graph.target]
    return weights[:, None]


def neighbours(graph: TwinGraph, dtype: torch.dtype) -> Tensor:
    """What a mean over neighbours is divided by, [nodes]: all of them, or those that were drawn."""
    if graph.sampled:
        return torch.bincount(graph.target, minlength=graph.nodes).to(dtype)
    return degrees(graph, dtype)


def degrees(graph: TwinGraph, dtype: torch.dtype) -> Tensor:
    """Edges into each node, [nodes], in a part of a graph as in the whole."""
    found = torch.bincount(graph.target, minlength=graph.nodes)
    return (found if graph.left_out is None else found + graph.left_out).to(dtype)

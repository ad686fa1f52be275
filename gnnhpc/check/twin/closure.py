"""The part of a graph that the outputs of a few nodes depend on."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.scene import SparseInput, TwinGraph


def closure_of(piece: Piece, nodes: Tensor, hops: int) -> Piece:
    """A whole graph's piece with only what is within `hops` edges before `nodes` (int64 [n]).

    The outputs of `nodes` are those in the whole graph; those of the other rows are not. `ids` are
    the whole graph's numbers.
    """
    graph = piece.graph
    assert graph is not None
    reached = torch.zeros(graph.nodes, dtype=torch.bool)
    reached[nodes] = True
    for _ in range(hops):
        reached[graph.source[reached[graph.target]]] = True
    kept = reached[graph.target] & reached[graph.source]
    ids = reached.nonzero().flatten()
    place = torch.full((graph.nodes,), -1).scatter(0, ids, torch.arange(len(ids)))
    return dataclasses.replace(
        piece,
        inputs=_rows(piece.inputs, ids, place),
        targets={split: target[ids] for split, target in piece.targets.items()},
        ids=ids,
        graph=TwinGraph(
            len(ids),
            place[graph.source[kept]],
            place[graph.target[kept]],
            graph.number[kept],
            torch.bincount(graph.target[~kept], minlength=graph.nodes)[ids],
        ),
    )


def _rows(x: Tensor | SparseInput, ids: Tensor, place: Tensor) -> Tensor | SparseInput:
    if isinstance(x, Tensor):
        return x[ids]
    kept = place[x.row] >= 0
    shape = (len(ids), x.shape[1])
    number = kept.nonzero().flatten() if x.number is None else x.number[kept]
    return SparseInput(place[x.row[kept]], x.column[kept], x.value[kept], shape, number)

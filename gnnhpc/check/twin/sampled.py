"""The twin's own sampled mini-batches: neighbours drawn one by one, rows that are all the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.check.capture import Ids, SeenEdges
from gnnhpc.check.plain.draws import PlainDraw
from gnnhpc.check.plain.links import PlainLinks
from gnnhpc.check.plain.shares import PlainShares, evaluated_nodes
from gnnhpc.check.twin.link_pieces import rows_of_pairs
from gnnhpc.check.twin.pieces import Piece, graph_inputs
from gnnhpc.check.twin.scene import SparseInput, TwinGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.graph import IGNORED, Graph

_Edges = tuple[Tensor, Tensor, Tensor]
"""Sources, targets and numbers in the graph, without self-loops."""
DrawnEdges = Callable[[int], Mapping[tuple[int, int], SeenEdges]]
"""What a library drew in a step, by replica and micro-batch."""


def drawn_by_library(experiment: Experiment) -> bool:
    """Whether nothing but the run itself can tell which edges were drawn."""
    return experiment.sampling is not None and experiment.sampling.sampler != "ours"


def sampled_pieces(
    experiment: Experiment,
    graph: Graph,
    step: int,
    drawn: Mapping[tuple[int, int], SeenEdges] | None = None,
    links: PlainLinks | None = None,
) -> list[Piece]:
    """All micro-batches of all replicas in a training step; `drawn` if a library drew its edges.

    Of `links` the step predicts some, whose edges no layer has. `graph` is the message graph then.
    Every layer has the same rows, all nodes that the mini-batch reaches: those that no later layer
    uses change nothing.
    """
    inputs = graph_inputs(graph, experiment.dtype)
    graph = trained_graph(experiment, graph)
    train = graph.masks["train"].nonzero().flatten().numpy()
    if links is not None:
        train = np.arange(len(links.by_split["train"]))
    edges = _KeptEdges.of(graph)
    if links is not None:
        predicted = links.edges_of(PlainShares.of(experiment, train).everyone(step))
        edges = _KeptEdges.of(graph, torch.from_numpy(predicted))
    pieces = []
    for replica in range(experiment.layout.replicas):
        shares = PlainShares.of(experiment, train, replica)
        for microbatch, learnt in enumerate(shares.nodes(step)):
            pairs = links.pairs(learnt, step) if links is not None else None
            seeds = learnt if pairs is None else np.unique(pairs)
            if drawn is None:
                layers = _drawn_layers(experiment, edges, torch.from_numpy(seeds), step)
            else:
                told = drawn[replica, microbatch].layers[::-1]
                layers = [_as_tensors(*layer) for layer in told]
            ids = _reached(torch.from_numpy(seeds), layers)
            if pairs is not None:
                targets = rows_of_pairs(pairs, len(learnt), ids)
            else:
                targets = _labels(graph, torch.from_numpy(seeds), ids)
            piece = _piece(inputs, edges, ids, layers, {"train": targets})
            pieces.append(replace(piece, replica=replica, microbatch=microbatch))
    return pieces


def evaluated_pieces(experiment: Experiment, graph: Graph) -> list[Piece]:
    """All micro-batches of all replicas in an evaluation that is sampled."""
    val, test = (graph.masks[split].numpy() for split in ("val", "test"))
    return [
        replace(
            evaluated_piece(experiment, graph, torch.from_numpy(nodes)),
            replica=replica,
            microbatch=microbatch,
        )
        for replica in range(experiment.layout.replicas)
        for microbatch, nodes in enumerate(evaluated_nodes(experiment, val, test, replica))
    ]


def evaluated_piece(experiment: Experiment, graph: Graph, nodes: Tensor) -> Piece:
    """What an evaluation that is sampled gives of these nodes, int64 [n], follows from this."""
    edges = _KeptEdges.of(graph)
    layers = _drawn_layers(experiment, edges, nodes, EVALUATED_STEP)
    ids = _reached(nodes, layers)
    targets = {
        split: _labels(graph, nodes[mask[nodes]], ids) for split, mask in graph.masks.items()
    }
    return _piece(graph_inputs(graph, experiment.dtype), edges, ids, layers, targets)


def _reached(seeds: Tensor, layers: Sequence[_Edges]) -> Tensor:
    """All nodes of a mini-batch, ascending."""
    found: Tensor = torch.cat([seeds, *(source for source, _, _ in layers)]).unique()
    return found


def _labels(graph: Graph, nodes: Tensor, ids: Tensor) -> Tensor:
    """int64 [ids]: of these nodes their labels, the others ignored."""
    targets = torch.full((len(ids),), IGNORED)
    targets[torch.searchsorted(ids, nodes)] = graph.labels[nodes]
    return targets


def _piece(
    inputs: Tensor | SparseInput,
    edges: _KeptEdges,
    ids: Tensor,
    layers: Sequence[_Edges],
    targets: Mapping[str, Tensor],
) -> Piece:
    """Of `layers` the output's comes first."""
    return Piece(
        rows_of(inputs, ids),
        targets,
        ids=ids,
        sampled=tuple(_twin_graph(edges, ids, *layer) for layer in reversed(layers)),
    )


def trained_graph(experiment: Experiment, graph: Graph) -> Graph:
    """The graph whose edges training may use: all, or those between training nodes."""
    if experiment.sampling is None or not experiment.sampling.inductive:
        return graph
    source, target = graph.edges
    train = graph.masks["train"]
    kept = (train[source] & train[target]).nonzero().flatten()
    return replace(graph, edges=graph.edges[:, kept], stored_in_edges=None)


@dataclass(frozen=True)
class _KeptEdges:
    """Of a graph, those that may be drawn, with their numbers in it."""

    source: Tensor
    target: Tensor
    number: Tensor
    degrees: Tensor
    """int64 [nodes]"""
    total: int
    """Edges of the graph."""

    @classmethod
    def of(cls, graph: Graph, left_out: Tensor | None = None) -> _KeptEdges:
        total = graph.edges.shape[1]
        number = torch.arange(total)
        if left_out is not None:
            number = number[~torch.isin(number, left_out)]
        source, target = graph.edges[:, number]
        degrees = torch.bincount(target, minlength=graph.nodes)
        return cls(source, target, number, degrees, total)


def _as_tensors(source: Ids, target: Ids, number: Ids) -> _Edges:
    return torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(number)


def _drawn_layers(
    experiment: Experiment, edges: _KeptEdges, seeds: Tensor, step: int
) -> list[_Edges]:
    """The edges of each layer, the output's first."""
    sampling = experiment.sampling
    assert sampling is not None
    degrees = edges.degrees
    first = degrees.cumsum(0) - degrees
    reached, layers = seeds.unique(), []
    for hop, fanout in enumerate(sampling.fanouts):
        number = hop if sampling.semantics == "resample" else 0
        draw = PlainDraw(fanout, experiment.seed, step, number, sampling.replace)
        places = draw.places(reached.tolist(), degrees[reached].tolist())
        counts = torch.tensor([len(each) for each in places], dtype=torch.int64)
        into = torch.repeat_interleave(reached, counts)
        chosen = torch.tensor([p for each in places for p in each], dtype=torch.int64)
        places_among_kept = first[into] + chosen
        sources = edges.source[places_among_kept]
        layers.append((sources, into, edges.number[places_among_kept]))
        reached = torch.cat((reached, sources)).unique()
    return layers


def _twin_graph(
    edges: _KeptEdges, ids: Tensor, source: Tensor, target: Tensor, number: Tensor
) -> TwinGraph:
    """One layer's edges between the rows of `ids`, ascending nodes, with a self-loop each."""
    rows = torch.arange(len(ids))
    drawn = torch.bincount(target, minlength=len(edges.degrees))
    return TwinGraph(
        len(ids),
        torch.cat((torch.searchsorted(ids, source), rows)),
        torch.cat((torch.searchsorted(ids, target), rows)),
        torch.cat((number, edges.total + ids)),
        (edges.degrees - drawn)[ids],
        sampled=True,
    )


def rows_of(x: Tensor | SparseInput, ids: Tensor) -> Tensor | SparseInput:
    """Those of these nodes, ascending, of all nodes' inputs."""
    if isinstance(x, Tensor):
        return x[ids]
    place = torch.full((x.shape[0],), -1).scatter(0, ids, torch.arange(len(ids)))
    kept = (place[x.row] >= 0).nonzero().flatten()
    shape = (len(ids), x.shape[1])
    return SparseInput(place[x.row[kept]], x.column[kept], x.value[kept], shape, kept)

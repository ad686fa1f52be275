"""The reference's micro-batches of one graph: the whole graph, or what was sampled of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph, block_weights
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.metis import metis_clusters
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import Ids, ReferenceBatch
from gnnhpc.validation.reference.edge_lists import EdgeList, node_features
from gnnhpc.validation.reference.sampling_rule import (
    CapturedEdges,
    Edges,
    ReferenceLinks,
    SampledMiniBatches,
    pair_targets,
)


class GraphData:
    """A graph for built-in layers, in one piece; `edges` are those that a library sampled."""

    def __init__(self, experiment: Experiment, graph: Graph, edges: CapturedEdges | None) -> None:
        self._experiment, self._edges = experiment, edges
        self._links = None
        if experiment.task is not None:
            self._links = ReferenceLinks(experiment, graph)
            graph = self._links.split.message
        sampled = experiment.sampling is not None
        self._sampled = SampledMiniBatches(experiment, graph, self._links) if sampled else None
        self._whole = None
        if not experiment.evaluates_sampled:
            whole = experiment.whole_graph if sampled else experiment
            self._whole = whole_graph_batch(whole, graph)

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        if self._sampled is not None and (phase == "train" or self._whole is None):
            step = step if phase == "train" else EVALUATED_STEP
            return self._sampled.batches(step, self._edges)
        assert self._whole is not None
        return [self._whole] if self._links is None else self._link_batches(self._whole)

    def _link_batches(self, whole: ReferenceBatch) -> list[ReferenceBatch]:
        """The whole message graph for each micro-batch of an evaluation, which has own pairs."""
        links, nodes = self._links, whole.nodes
        assert links is not None
        assert nodes is not None
        parts, batches = self._experiment.total_chunks, []
        for place in range(parts):
            replica, microbatch = divmod(place, self._experiment.microbatches)
            pairs = {split: links.evaluated(split, place, parts) for split in ("val", "test")}
            targets = {s: pair_targets(each, count, nodes) for s, (each, count) in pairs.items()}
            batches.append(replace(whole, targets=targets, replica=replica, microbatch=microbatch))
        return batches


class CustomGraphData:
    """A graph for a custom model's layers: one chunk for each micro-batch.

    Chunks with a halo are the whole graph, of which a micro-batch's loss has the nodes that its
    chunk owns. Other chunks are the induced subgraph of their own nodes; sampled ones are built
    from the sampling rule. None of them has padding. With `by_rows` the chunks are the run's own:
    layers such as BatchNorm compute with all rows of a chunk, its halo and its padding included.
    """

    def __init__(
        self,
        experiment: Experiment,
        specs: LayerSpecs,
        graph: Graph,
        edges: CapturedEdges | None,
        *,
        by_rows: bool,
    ) -> None:
        self._experiment, self._graph, self._edges = experiment, graph, edges
        self._hops, self._by_rows = hops(specs), by_rows
        sampled = experiment.sampling is not None
        self._sampled = SampledMiniBatches(experiment, graph, None) if sampled else None

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        experiment, sampled = self._experiment, self._sampled
        if sampled is not None and (phase == "train" or experiment.evaluates_sampled):
            number = step if phase == "train" else EVALUATED_STEP
            chunks = [
                chunk_of_edges(sampled.graph(number), torch.from_numpy(seeds.nodes), layers)
                for seeds, layers in sampled.edges(number, self._edges)
            ]
        else:
            chunks = self._chunks(experiment.whole_graph if sampled is not None else experiment)
        return [
            self._batch(chunk, divmod(place, experiment.microbatches), step)
            for place, chunk in enumerate(chunks)
        ]

    def _chunks(self, experiment: Experiment) -> list[GraphChunk]:
        graph, count = self._graph, experiment.total_chunks
        if self._by_rows:
            return list(build_chunks(graph, count, experiment.chunks, self._hops).chunks)
        owner = torch.from_numpy(owners(experiment, graph))
        number = torch.arange(graph.edges.shape[1])
        if experiment.chunks == "halo":
            layer = (graph.edges[0], graph.edges[1], number)
            whole = _chunk(graph, torch.arange(graph.nodes), [layer] * self._hops)
            return [_with_targets_of(whole, owner == place) for place in range(count)]
        chunks = []
        for place in range(count):
            kept = (owner[graph.edges] == place).all(0)
            layer = (graph.edges[0, kept], graph.edges[1, kept], number[kept])
            nodes = (owner == place).nonzero().flatten()
            chunks.append(_chunk(graph, nodes, [layer] * self._hops))
        return chunks

    def _batch(self, chunk: GraphChunk, place: tuple[int, int], step: int) -> ReferenceBatch:
        replica, microbatch = place
        return ReferenceBatch(
            node_features(self._graph, chunk.nodes),
            chunk.targets,
            replica,
            microbatch,
            nodes=chunk.nodes,
            context=Context(microbatch, step, self._experiment.seed, chunk),
        )


def _chunk(graph: Graph, nodes: Tensor, layers: list[Edges]) -> GraphChunk:
    """A chunk without a halo, in whose degrees the listed edges alone count."""
    degree = torch.ones(graph.nodes, dtype=torch.int64)
    if layers:
        degree += torch.bincount(layers[0][1], minlength=graph.nodes)
    chunk = chunk_of_edges(graph, nodes, layers)
    weighted = None
    if graph.edge_weight is not None:
        weighted = torch.ones(graph.nodes, dtype=torch.float64)
        if layers:
            weights = graph.edge_weight[layers[0][2]].double()
            weighted.index_add_(0, layers[0][1], weights)
        weighted = weighted[nodes]
    return replace(chunk, degree=degree[nodes], sampled=False, weighted_degree=weighted)


def _with_targets_of(chunk: GraphChunk, owned: Tensor) -> GraphChunk:
    """The chunk with the targets of some rows, bool [rows], and IGNORED for the others."""
    targets = {split: t.where(owned, IGNORED) for split, t in chunk.targets.items()}
    return replace(chunk, targets=targets)


def chunk_of_edges(graph: Graph, seeds: Tensor, layers: Sequence[Edges]) -> GraphChunk:
    """The chunk that computes the nodes `seeds`, int64 ascending, without padding.

    `layers` has the edges of each layer that uses neighbours, the last layer's first. The nodes
    that a layer adds follow the others, ascending.
    """
    degree = torch.bincount(graph.edges[1], minlength=graph.nodes) + 1
    weighted = None
    if graph.edge_weight is not None:
        weighted = torch.ones(graph.nodes, dtype=torch.float64)
        weighted.index_add_(0, graph.edges[1], graph.edge_weight.double())
    place = torch.full((graph.nodes,), -1)
    nodes, rows, blocks = seeds, [len(seeds)], []
    for source, target, number in layers:
        computed = nodes
        nodes = torch.cat((nodes, source[~torch.isin(source, nodes)].unique()))
        place[nodes] = torch.arange(len(nodes))
        # The edges into each computed row, its self-loop last.
        rows_in, rows_out = (place[torch.cat((ends, computed))] for ends in (source, target))
        numbers = torch.cat((number, graph.edges.shape[1] + computed))
        order = torch.argsort(rows_out, stable=True)
        counts = torch.bincount(rows_out, minlength=len(computed))
        indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        weights = block_weights(graph.edge_weight, numbers[order])
        ends = rows_in[order], rows_out[order], numbers[order]
        blocks.append(Block(indptr, *ends, len(nodes), weights))
        rows.append(len(nodes))
    return GraphChunk(
        nodes=nodes,
        rows=tuple(rows[::-1]),
        blocks=tuple(blocks[::-1]),
        degree=degree[nodes],
        targets=graph.targets(seeds),
        own=len(seeds),
        full=FullGraph.of(graph),
        sampled=True,
        weighted_degree=None if weighted is None else weighted[nodes],
    )


def whole_graph_batch(experiment: Experiment, graph: Graph) -> ReferenceBatch:
    """The whole graph, without the edges that the experiment's chunks lose."""
    source, target = graph.edges
    number, node = torch.arange(len(source)), torch.arange(graph.nodes)
    if experiment.chunks != "halo":
        owner = torch.from_numpy(owners(experiment, graph))
        kept = owner[source] == owner[target]
        source, target, number = source[kept], target[kept], number[kept]
    loops = graph.edges.shape[1] + node
    ends = torch.cat((source, node)), torch.cat((target, node))
    number = torch.cat((number, loops))
    weights = block_weights(graph.edge_weight, number)
    edges = EdgeList(graph.nodes, *ends, number)
    if weights is not None:
        total = torch.zeros(graph.nodes, dtype=torch.float64)
        total.index_add_(0, ends[1], weights.double())
        edges = replace(edges, weight=weights.double(), weighted_degree=total)
    return ReferenceBatch(
        node_features(graph, node),
        graph.targets(node),
        nodes=node,
        edges=edges,
    )


def owners(experiment: Experiment, graph: Graph) -> Ids:
    """The chunk that owns each node: consecutive ranges of nodes, or METIS's clusters."""
    count = experiment.total_chunks
    if experiment.chunks == "contiguous":
        return np.arange(graph.nodes) * count // graph.nodes
    source, target = graph.edges.numpy()
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=graph.nodes))))
    return metis_clusters(indptr, source, count)

"""The reference's micro-batches of one graph: the whole graph, or what was sampled of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.partition import metis_clusters
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.forward_pass import EdgeList
from gnnhpc.validation.reference.graph_chunk import Edges, chunk_of_edges
from gnnhpc.validation.reference.links import LinkSplit
from gnnhpc.validation.reference.micro_batches import (
    CapturedEdges,
    Ids,
    ReferenceBatch,
    node_features,
)
from gnnhpc.validation.reference.sampled_batches import SampledBatches, pair_targets


class GraphData:
    """A graph for built-in layers, in one piece; `edges` are those that a library sampled."""

    def __init__(self, experiment: Experiment, graph: Graph, edges: CapturedEdges | None) -> None:
        self._experiment, self._edges = experiment, edges
        self._links = None
        if experiment.task is not None:
            source, target = graph.edges.numpy()
            self._links = LinkSplit.of(experiment, source, target, graph.nodes)
            message = np.stack((self._links.source, self._links.target))
            graph = replace(graph, edges=torch.from_numpy(message), stored_in_edges=None)
        sampled = experiment.sampling is not None
        self._sampled = SampledBatches(experiment, graph, self._links) if sampled else None
        self._whole = None
        if not experiment.evaluates_sampled:
            whole = experiment.whole_graph if sampled else experiment
            self._whole = whole_graph_batch(whole, graph)

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        if self._sampled is not None and phase == "train":
            return self._sampled.train(step, self._edges)
        if self._whole is None:
            assert self._sampled is not None
            return self._sampled.test()
        return [self._whole] if self._links is None else self._link_batches(self._whole)

    def _link_batches(self, whole: ReferenceBatch) -> list[ReferenceBatch]:
        """The whole message graph for each micro-batch of an evaluation, which has own pairs."""
        assert self._links is not None
        assert whole.nodes is not None
        parts, batches = self._experiment.total_chunks, []
        for place in range(parts):
            replica, microbatch = divmod(place, self._experiment.microbatches)
            targets = {
                split: pair_targets(
                    self._links.evaluated(split, place, parts),
                    self._links.links_of(split, place, parts),
                    whole.nodes,
                )
                for split in ("val", "test")
            }
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
        self._sampled = SampledBatches(experiment, graph, None) if sampled else None

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        experiment = self._experiment
        if self._sampled is not None and (phase == "train" or experiment.evaluates_sampled):
            chunks = self._sampled_chunks(self._sampled, phase, step)
        else:
            whole = experiment.whole_graph if self._sampled is not None else experiment
            chunks = self._chunks(whole)
        return [
            self._batch(chunk, divmod(place, experiment.microbatches), step)
            for place, chunk in enumerate(chunks)
        ]

    def _sampled_chunks(self, sampled: SampledBatches, phase: Phase, step: int) -> list[GraphChunk]:
        if phase == "train":
            graph, seeds, edges = sampled.trained, sampled.train_seeds(step), self._edges
        else:
            graph, seeds, edges = sampled.whole, sampled.test_seeds(), None
            step = EVALUATED_STEP
        allowed = sampled.allowed(step)
        return [
            chunk_of_edges(
                graph, torch.from_numpy(each.nodes), sampled.layers(allowed, each, step, edges)
            )
            for each in seeds
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
        rows = feature_rows(self._graph.features, chunk.nodes, torch.float64)
        if not isinstance(rows, Tensor) and not self._experiment.model.loaded.sparse_inputs:
            rows = rows.to_dense()
        return ReferenceBatch(
            rows if isinstance(rows, Tensor) else rows.to_dense(),
            chunk.targets,
            replica,
            microbatch,
            nodes=chunk.nodes,
            context=Context(microbatch, step, self._experiment.seed, chunk),
            layer_input=rows,
        )


def _chunk(graph: Graph, nodes: Tensor, layers: list[Edges]) -> GraphChunk:
    """A chunk without a halo, in whose degrees the listed edges alone count."""
    degree = torch.ones(graph.nodes, dtype=torch.int64)
    if layers:
        degree += torch.bincount(layers[0][1], minlength=graph.nodes)
    return replace(chunk_of_edges(graph, nodes, layers), degree=degree[nodes], sampled=False)


def _with_targets_of(chunk: GraphChunk, owned: Tensor) -> GraphChunk:
    """The chunk with the targets of some rows, bool [rows], and IGNORED for the others."""
    targets = {split: t.where(owned, IGNORED) for split, t in chunk.targets.items()}
    return replace(chunk, targets=targets)


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
    return ReferenceBatch(
        node_features(graph),
        {split: torch.where(mask, graph.labels, IGNORED) for split, mask in graph.masks.items()},
        nodes=node,
        edges=EdgeList(graph.nodes, *ends, torch.cat((number, loops))),
    )


def owners(experiment: Experiment, graph: Graph) -> Ids:
    """The chunk that owns each node: consecutive ranges of nodes, or METIS's clusters."""
    count = experiment.total_chunks
    if experiment.chunks == "contiguous":
        return np.arange(graph.nodes) * count // graph.nodes
    source, target = graph.edges.numpy()
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=graph.nodes))))
    return metis_clusters(indptr, source, count)

"""The reference's micro-batches of a graph, whole or sampled, and of many small graphs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.halo_chunks import build_chunks, metis_clusters
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import SPLITS, Ids, ReferenceBatch, block_of, node_features
from gnnhpc.validation.reference.random_numbers import SampleSchedule, split_nodes
from gnnhpc.validation.reference.sampling_rule import (
    CapturedEdges,
    ReferenceLinks,
    SampledMiniBatches,
    chunk_of_edges,
)

Rows = Literal["graph", "own", "run"]


class GraphData:
    """A graph, in chunks without padding; `edges` are those that a library sampled.

    A built-in model's rows depend on their edges alone: the whole `graph`, without the edges that
    chunks lose, is one batch for all micro-batches. The layers of a custom model may compute with
    all rows of a chunk. It has a chunk for each micro-batch: with a halo the whole graph, of which
    the loss has the nodes that its chunk owns; otherwise the induced subgraph of its `own` nodes. A
    BatchNorm computes with the rows of the `run`, whose chunks it gets.
    """

    def __init__(
        self,
        experiment: Experiment,
        specs: LayerSpecs,
        graph: Graph,
        edges: CapturedEdges | None,
        rows: Rows,
    ) -> None:
        self._experiment, self._edges, self._rows, self._hops = experiment, edges, rows, hops(specs)
        self._links = None
        if experiment.task is not None:
            self._links = ReferenceLinks(experiment, graph)
            graph = self._links.split.message
        self._graph, self._sampled = graph, None
        if experiment.sampling is not None:
            self._sampled = SampledMiniBatches(experiment, graph, self._links)

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        if self._sampled is not None and (phase == "train" or self._experiment.evaluates_sampled):
            sampled_step = step if phase == "train" else EVALUATED_STEP
            chunks = self._sampled.chunks(sampled_step, self._edges)
        elif self._links is not None:
            # The whole message graph for each micro-batch, which has pairs of its own.
            whole, count = self._chunks[0], self._experiment.total_chunks
            targets = (self._links.evaluated(n, count, whole.nodes) for n in range(count))
            chunks = [replace(whole, targets=each) for each in targets]
        else:
            chunks = self._chunks
        return _batches(self._experiment, self._graph, chunks, step)

    @cached_property
    def _chunks(self) -> list[GraphChunk]:
        """The chunks of the whole graph."""
        graph, sampled = self._graph, self._sampled is not None
        experiment = self._experiment.whole_graph if sampled else self._experiment
        count, number = experiment.total_chunks, torch.arange(graph.edges.shape[1])
        if self._rows == "run":
            return list(build_chunks(graph, count, experiment.chunks, self._hops).chunks)
        every = torch.arange(graph.nodes)
        owner = torch.from_numpy(owners(experiment, graph))
        owner_of_edge = owner[graph.edges]
        if experiment.chunks != "halo":
            number = number[owner_of_edge[0] == owner_of_edge[1]]
        if experiment.chunks == "halo" or self._rows == "graph":
            whole = self._chunk(every, number)
            own = [owner == place for place in range(count)] if self._rows == "own" else []
            targets = (
                {split: t.where(each, IGNORED) for split, t in whole.targets.items()}
                for each in own
            )
            return [replace(whole, targets=each) for each in targets] or [whole]
        return [
            self._chunk(every[owner == place], number[owner_of_edge[0, number] == place])
            for place in range(count)
        ]

    def _chunk(self, nodes: Tensor, number: Tensor) -> GraphChunk:
        """A chunk of nodes with the same edges in all layers, which alone count in degrees."""
        source, target = self._graph.edges[:, number]
        return chunk_of_edges(self._graph, nodes, [(source, target, number)] * self._hops, number)


class GraphSetData:
    """Many small graphs; those of a micro-batch are one chunk."""

    def __init__(self, experiment: Experiment, specs: LayerSpecs, graphs: GraphSet) -> None:
        self._experiment, self._graphs, self._hops = experiment, graphs, hops(specs)
        nothing = torch.zeros(graphs.nodes, dtype=torch.int64)
        self._all = Graph(graphs.name, graphs.features, nothing, graphs.edges, {}, graphs.classes)

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        experiment = self._experiment
        masks = [self._graphs.masks[split].numpy() for split in SPLITS[phase]]
        numbers = np.flatnonzero(np.any(masks, axis=0))
        parts = np.array_split(numbers, experiment.total_chunks)
        if phase == "train":
            schedule = SampleSchedule(experiment, len(numbers))
            shares = (schedule.share(step, each) for each in range(experiment.layout.replicas))
            of_replicas = (split_nodes(numbers[each], experiment.microbatches) for each in shares)
            parts = list(itertools.chain.from_iterable(of_replicas))
        chunks = [self._chunk(part, phase) for part in parts]
        return _batches(experiment, self._graphs, chunks, step)

    def _chunk(self, numbers: Ids, phase: Phase) -> GraphChunk:
        """The nodes of these graphs, one graph after another, and all of their edges."""
        graphs, chosen = self._graphs, torch.from_numpy(numbers)
        graph_of = torch.repeat_interleave(torch.arange(len(graphs)), graphs.first.diff())
        nodes = torch.isin(graph_of, chosen).nonzero().flatten()
        number = torch.isin(graphs.edges[1], nodes).nonzero().flatten()
        edges = (*graphs.edges[:, number], number)
        chunk = chunk_of_edges(self._all, nodes, [edges] * self._hops, number)
        graph_of_row = torch.searchsorted(chosen, graph_of[nodes])
        rows = torch.arange(len(nodes))
        return replace(
            chunk,
            rows=(*chunk.rows, len(chosen)),
            targets={
                split: graphs.labels[chosen].where(graphs.masks[split][chosen], IGNORED)
                for split in SPLITS[phase]
            },
            graphs=chosen,
            pooling=block_of(rows, graph_of_row, nodes, len(nodes), len(chosen)),
        )


def _batches(
    experiment: Experiment, data: Graph | GraphSet, chunks: Sequence[GraphChunk], step: int
) -> list[ReferenceBatch]:
    """A batch of each chunk, which are those of one replica after the other."""
    batches = []
    for place, chunk in enumerate(chunks):
        replica, microbatch = divmod(place, experiment.microbatches)
        context = Context(microbatch, step, experiment.seed, chunk)
        inputs = node_features(data, chunk.nodes)
        batches.append(ReferenceBatch(inputs, chunk.targets, context, replica))
    return batches


def owners(experiment: Experiment, graph: Graph) -> Ids:
    """The chunk that owns each node: consecutive ranges of nodes, or METIS's clusters."""
    count = experiment.total_chunks
    if experiment.chunks == "contiguous":
        return np.arange(graph.nodes) * count // graph.nodes
    source, target = graph.edges.numpy()
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=graph.nodes))))
    return metis_clusters(indptr, source, count)

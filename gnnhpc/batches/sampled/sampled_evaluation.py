"""Evaluations of a sampled run: of the whole graph layer by layer, or of sampled neighbours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from gnnhpc.batches.batch import Batch, BatchPlan, Loading
from gnnhpc.batches.graph_batch import (
    RepeatedBatch,
    chunk_batch,
    crc32,
    input_rows,
    label_counts,
    stage_inputs,
)
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features
from gnnhpc.batches.sampled.training_samples import edges_of
from gnnhpc.batches.shuffle import cut_evenly
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import FullGraph, GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.layerwise import LayerwiseRows
from gnnhpc.records.schema import Phase


def evaluate_by_layers(plan: BatchPlan, graph: Graph, sampler: NeighborSampler) -> RepeatedBatch:
    """One mini-batch of all nodes over all neighbours, computed layer by layer.

    Replicas, and their micro-batches, have consecutive nodes.
    """
    mesh = plan.mesh
    mine = cut_evenly(range(graph.nodes), mesh.layout.replicas)[mesh.replica]
    one_hop, depth = sampler.whole(), hops(plan.layer_specs)
    chunks = []
    for own in cut_evenly(mine, plan.experiment.microbatches):
        rows = LayerwiseRows(one_hop, sampler.indptr, mine, own, depth, mesh.sum_over_replicas)
        chunks.append(_layerwise_chunk(graph, own, rows))
    inputs = stage_inputs(graph, chunks, plan, input_rows)
    ids = torch.arange(mine.start, mine.stop)
    return RepeatedBatch(plan, chunks, inputs, ids.numpy(), crc32([ids]), label_counts(graph))


def _layerwise_chunk(graph: Graph, own: range, rows: LayerwiseRows) -> GraphChunk:
    nodes = (torch.arange(graph.nodes) + own.start) % graph.nodes
    return GraphChunk(
        nodes=nodes,
        rows=(graph.nodes,) * rows.hops + (len(own),),
        blocks=(),
        degree=rows.indptr.diff()[nodes] + 1,
        targets=graph.targets(nodes[: len(own)]),
        own=len(own),
        full=FullGraph.of(graph),
        row_blocks=rows,
    )


class SampledEvaluation:
    """One mini-batch of all nodes to validate and to test, over sampled neighbours.

    Replicas, and their micro-batches, have consecutive ones. Every evaluation samples the same
    neighbours, so that two differ only by the training between them.
    """

    def __init__(
        self, plan: BatchPlan, graph: Graph, sampler: NeighborSampler, features: Features
    ) -> None:
        self._plan, self._sampler, self._features = plan, sampler, features
        mesh = plan.mesh
        nodes = (graph.masks["val"] | graph.masks["test"]).nonzero().flatten()
        mine = cut_evenly(range(len(nodes)), mesh.layout.replicas)[mesh.replica]
        parts = cut_evenly(mine, plan.experiment.microbatches)
        self._seeds = [nodes[part.start : part.stop] for part in parts]
        self._own = nodes[mine.start : mine.stop]
        self._valid_targets = label_counts(graph)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        mesh = self._plan.mesh
        began_s = time.perf_counter()
        chunks = tuple(self._sampler.chunk(seeds, EVALUATED_STEP) for seeds in self._seeds)
        sample_s = time.perf_counter() - began_s
        on_device = [chunk.to(mesh.device) for chunk in chunks]
        inputs, gather_s = self._features.taken(chunks, on_device)
        return chunk_batch(
            self._plan,
            phase,
            step,
            on_device,
            inputs,
            sample_ids=self._own.numpy(),
            valid_targets=self._valid_targets[phase],
            epoch=step,
            checksum=crc32([self._own]),
            loading=Loading(sample_s, gather_s, edges_of(chunks, self._sampler.semantics)),
        )

"""Evaluations of a sampled run: of the whole graph layer by layer, or of sampled neighbours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import torch

from gnnhpc.batches.batch import SPLITS, Batch, BatchPlan, Loading, MicroBatch
from gnnhpc.batches.chunk_batches import crc32, input_rows
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


class LayerwiseEvaluation:
    """One mini-batch of all nodes over all neighbours, computed layer by layer.

    Replicas, and their micro-batches, have consecutive nodes.
    """

    def __init__(self, plan: BatchPlan, graph: Graph, sampler: NeighborSampler) -> None:
        self._plan = plan
        mesh = plan.mesh
        mine = cut_evenly(range(graph.nodes), mesh.layout.replicas)[mesh.replica]
        one_hop, depth = sampler.whole(), hops(plan.layer_specs)
        self._chunks = []
        for own in cut_evenly(mine, plan.experiment.microbatches):
            rows = LayerwiseRows(one_hop, sampler.indptr, mine, own, depth, mesh.sum_over_replicas)
            self._chunks.append(_layerwise_chunk(graph, own, rows))
        self._inputs = [input_rows(graph, c, plan) if mesh.is_first else None for c in self._chunks]
        self._own = np.arange(mine.start, mine.stop)
        self._valid_targets = {split: int(mask.sum()) for split, mask in graph.masks.items()}

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        has_loss = self._plan.mesh.has_loss
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    self._inputs[m],
                    {split: chunk.targets[split] for split in SPLITS[phase]} if has_loss else {},
                    self._plan.context(m, step, chunk),
                )
                for m, chunk in enumerate(self._chunks)
            ),
            valid_targets=self._valid_targets[phase],
            samples=len(self._own),
            epoch=step,
            sample_ids=self._own,
            checksum=crc32([torch.from_numpy(self._own)]),
        )


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
        self._valid_targets = {split: int(mask.sum()) for split, mask in graph.masks.items()}

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
        microbatches = []
        for m, (x, chunk) in enumerate(zip(inputs, on_device, strict=True)):
            targets = {split: chunk.targets[split] for split in SPLITS[phase]}
            context = self._plan.context(m, step, chunk)
            microbatches.append(MicroBatch(x, targets if mesh.has_loss else {}, context))
        return Batch(
            microbatches=tuple(microbatches),
            valid_targets=self._valid_targets[phase],
            samples=len(self._own),
            epoch=step,
            sample_ids=self._own.numpy(),
            checksum=crc32([self._own]),
            loading=Loading(sample_s, gather_s, edges_of(chunks, self._sampler.semantics)),
        )

"""Evaluation of sampled neighbours: a replica's share of the nodes to validate and to test."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterator

import numpy as np

from gnnhpc.batches.batch import Batch, Loading, MicroBatch
from gnnhpc.batches.chunk_batches import SPLITS
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.draws import edges_of
from gnnhpc.batches.sampled.features import Features
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.shuffle import cut_evenly
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


class SampledEvaluation:
    """One mini-batch: all labelled nodes that are not trained on, cut into replicas and these into
    micro-batches. Their neighbours are drawn alike in every evaluation, so that two differ by what
    was learnt between them."""

    def __init__(
        self, plan: BatchPlan, graph: Graph, sampler: GraphSampler, features: Features
    ) -> None:
        self._plan, self._graph, self._sampler = plan, graph, sampler
        self._features = features
        mesh, parts = plan.mesh, plan.experiment.microbatches
        nodes = (graph.masks["val"] | graph.masks["test"]).nonzero().flatten()
        mine = cut_evenly(range(len(nodes)), mesh.layout.replicas)[mesh.replica]
        self._seeds = [nodes[part.start : part.stop] for part in cut_evenly(mine, parts)]
        self._own = nodes[mine.start : mine.stop].numpy()
        self._labelled = {split: int(mask.sum()) for split, mask in graph.masks.items()}

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        began_s = time.perf_counter()
        chunks = tuple(self._chunk(m) for m in range(len(self._seeds)))
        sample_s = time.perf_counter() - began_s
        mesh = self._plan.mesh
        on_device = [chunk.to(mesh.device) for chunk in chunks]
        inputs, gather_s = self._features.taken(chunks, on_device)
        microbatches = []
        for m, (x, there) in enumerate(zip(inputs, on_device, strict=True)):
            targets = {split: there.targets[split] for split in SPLITS[phase]}
            context = self._context(m, step, there)
            microbatches.append(MicroBatch(x, targets if mesh.has_loss else {}, context))
        drawn = edges_of(chunks, self._sampler.semantics)
        return Batch(
            microbatches=tuple(microbatches),
            labelled=self._labelled[phase],
            samples=len(self._own),
            epoch=step,
            sample_ids=self._own,
            checksum=zlib.crc32(np.ascontiguousarray(self._own).tobytes()),
            loading=Loading(sample_s, gather_s, drawn),
        )

    def _chunk(self, m: int) -> GraphChunk:
        return self._sampler.chunk(self._seeds[m], EVALUATED_STEP)

    def _context(self, m: int, step: int, chunk: GraphChunk) -> Context:
        return Context(m, step, self._plan.experiment.seed, chunk)

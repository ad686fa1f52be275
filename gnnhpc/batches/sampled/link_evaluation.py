"""Evaluation of links: their ends' embeddings over all neighbours of the message graph.

Each micro-batch of each replica has its share of the links that validate and test, and all of
their negatives, so that what each finds of its own links adds up to what one process finds.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch, SampleIds
from gnnhpc.batches.chunk_batches import copied_rows
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.sampled.learnt import link_targets
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import MOST_NEIGHBOURS
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.in_turn import EDGES_AT_ONCE
from gnnhpc.links.negatives import pool
from gnnhpc.links.split import LinkSplit
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


class LinkEvaluation:
    """One mini-batch, the same in every step. Targets of a split are int64 [links + pool, 3]: rows
    of a pair's two nodes, and 1 for a link; links come before the pool.

    Raises InputError for a graph too large to be computed at once, for a pool with fewer negatives
    than the rank that hits are counted by, and for a graph with too few pairs that are no links.
    """

    def __init__(self, plan: BatchPlan, links: LinkSplit) -> None:
        self._plan, self._links = plan, links
        data, graph = f"data {plan.experiment.data.name}", links.message
        if graph.edges.shape[1] > EDGES_AT_ONCE:
            found = f"{graph.edges.shape[1]} of links to train on"
            allowed = f"at most {EDGES_AT_ONCE} to evaluate links by; test_steps 0 beyond"
            raise InputError(data, "edges", found, allowed)
        self._pools = {split: self._pool(split, data) for split in ("val", "test")}
        depth = hops(plan.outlines)
        sampler = GraphSampler(graph, (MOST_NEIGHBOURS,) * depth, plan.experiment.seed)
        count = plan.experiment.microbatches
        first = plan.mesh.replica * count
        places = range(first, first + count)
        chunks = [self._chunk(sampler, place) for place in places]
        self._inputs = [self._features(chunk) for chunk in chunks]
        # Not nodes: each micro-batch has the pool's, which more parts would count more often.
        self._judged = np.concatenate([self._numbers(place) for place in places])
        self._checksum = 0
        for chunk in chunks:
            self._checksum = zlib.crc32(chunk.nodes.numpy().tobytes(), self._checksum)
        self._chunks = [chunk.to(plan.mesh.device) for chunk in chunks]

    def _pool(self, split: str, data: str) -> Tensor:
        task, seed = self._plan.experiment.task, self._plan.experiment.seed
        assert task is not None
        links: Tensor = getattr(self._links, split)
        count = min(len(links), task.pool)
        if count < task.hits:
            allowed = f"at most {count}, the negatives that links of the {split} split have"
            raise InputError(data, "task.hits", task.hits, allowed)
        return pool(self._links.joined, self._links.message.nodes, count, seed, split)

    def _chunk(self, sampler: GraphSampler, place: int) -> GraphChunk:
        """That of one micro-batch of all replicas', on the CPU."""
        parts = self._plan.experiment.total_chunks
        pairs, links = [], []
        for split, negatives in self._pools.items():
            own = getattr(self._links, split).tensor_split(parts)[place]
            pairs.append(torch.cat((own, negatives)))
            links.append(len(own))
        nodes = torch.cat(pairs).unique()
        targets = {}
        for split, each, count in zip(self._pools, pairs, links, strict=True):
            targets[split] = link_targets(nodes, each, count)
        return replace(sampler.chunk(nodes, 0), targets=targets, sampled=False)

    def _numbers(self, place: int) -> SampleIds:
        """Of one micro-batch's links: their places among those to validate, then to test."""
        val, test = len(self._links.val), len(self._links.test)
        parts = self._plan.experiment.total_chunks
        both = (torch.arange(val), torch.arange(val, val + test))
        return torch.cat([split.tensor_split(parts)[place] for split in both]).numpy()

    def _features(self, chunk: GraphChunk) -> Inputs | None:
        if not self._plan.mesh.is_first:
            return None
        return copied_rows(self._links.message, chunk, self._plan).to(self._plan.mesh.device)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(step) for step in range(start, stop))

    def _batch(self, step: int) -> Batch:
        is_last = self._plan.mesh.has_loss
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    self._inputs[m],
                    chunk.targets if is_last else {},
                    self._context(m, step),
                )
                for m, chunk in enumerate(self._chunks)
            ),
            labelled=len(self._links.test),
            samples=len(self._judged),
            epoch=step,
            sample_ids=self._judged,
            checksum=self._checksum,
        )

    def _context(self, m: int, step: int) -> Context:
        return Context(m, step, self._plan.experiment.seed, self._chunks[m])

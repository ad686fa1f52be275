"""Evaluation of links: the embeddings of their ends, over all neighbours in the message graph.

Each micro-batch of each replica has its share of the links to validate and to test, and all
negatives, so that the sums over micro-batches are those of one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, BatchPlan, Inputs, MicroBatch
from gnnhpc.batches.chunk_batches import copied_rows, crc32
from gnnhpc.batches.sampled.negatives import pool
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.training_samples import link_targets
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import MOST_NEIGHBOURS
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.layerwise import EDGES_AT_ONCE
from gnnhpc.graphs.link_split import LinkSplit
from gnnhpc.records.schema import Phase


class LinkEvaluation:
    """One mini-batch, the same in every step.

    The targets of a split are int64 [links + pool, 3]: the rows of a pair's two nodes, and 1 for a
    link; links come before the pool. Raises InputError for a graph too large to be computed at
    once, for a pool with fewer negatives than `hits`, and for too few pairs that are no links.
    """

    def __init__(self, plan: BatchPlan, links: LinkSplit) -> None:
        self._plan, self._links = plan, links
        data, graph = f"data {plan.experiment.data.name}", links.message
        if graph.edges.shape[1] > EDGES_AT_ONCE:
            found = f"{graph.edges.shape[1]} of links to train on"
            allowed = f"at most {EDGES_AT_ONCE} to evaluate links by; test_steps 0 beyond"
            raise InputError(data, "edges", found, allowed)
        self._pools = {split: self._pool(split, data) for split in ("val", "test")}
        depth = hops(plan.layer_specs)
        sampler = NeighborSampler(graph, (MOST_NEIGHBOURS,) * depth, plan.experiment.seed)
        count = plan.experiment.microbatches
        first = plan.mesh.replica * count
        places = range(first, first + count)
        chunks = [self._chunk(sampler, place) for place in places]
        self._inputs: list[Inputs | None] = [None] * count
        if plan.mesh.is_first:
            self._inputs = [copied_rows(graph, c, plan).to(plan.mesh.device) for c in chunks]
        # Not nodes: each micro-batch has those of the pools, which would be counted several times.
        self._sample_ids = torch.cat([self._numbers(place) for place in places]).numpy()
        self._checksum = crc32([chunk.nodes for chunk in chunks])
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

    def _share(self, links: Tensor, place: int) -> Tensor:
        """The part of these links that one of all replicas' micro-batches has."""
        return links.tensor_split(self._plan.experiment.total_chunks)[place]

    def _chunk(self, sampler: NeighborSampler, place: int) -> GraphChunk:
        own = {split: self._share(getattr(self._links, split), place) for split in self._pools}
        pairs = {split: torch.cat((own[split], self._pools[split])) for split in own}
        nodes = torch.cat([*pairs.values()]).unique()
        targets = {split: link_targets(nodes, pairs[split], len(own[split])) for split in own}
        return replace(sampler.chunk(nodes, 0), targets=targets, sampled=False)

    def _numbers(self, place: int) -> Tensor:
        """The places of one micro-batch's links among those to validate, then to test."""
        val, test = len(self._links.val), len(self._links.test)
        both = (torch.arange(val), torch.arange(val, val + test))
        return torch.cat([self._share(numbers, place) for numbers in both])

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(step) for step in range(start, stop))

    def _batch(self, step: int) -> Batch:
        has_loss = self._plan.mesh.has_loss
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    self._inputs[m],
                    chunk.targets if has_loss else {},
                    self._plan.context(m, step, chunk),
                )
                for m, chunk in enumerate(self._chunks)
            ),
            valid_targets=len(self._links.test),
            samples=len(self._sample_ids),
            epoch=step,
            sample_ids=self._sample_ids,
            checksum=self._checksum,
        )

"""Evaluation of links: the embeddings of their ends, over all neighbours in the message graph.

Each micro-batch of each replica has its share of the links to validate and to test, and all
negatives, so that the sums over micro-batches are those of one process.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, BatchPlan
from gnnhpc.batches.graph_batch import RepeatedBatch, copied_rows, crc32, stage_inputs
from gnnhpc.batches.sampled.negatives import pool
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.training_samples import link_targets
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import MOST_NEIGHBOURS
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.layerwise import EDGES_AT_ONCE
from gnnhpc.graphs.link_split import LinkSplit


def evaluate_links(plan: BatchPlan, links: LinkSplit) -> RepeatedBatch:
    """One mini-batch, the same in every step.

    The targets of a split are int64 [links + pool, 3]: the rows of a pair's two nodes, and 1 for a
    link; links come before the pool. Raises InputError for a graph too large to be computed at
    once, for a pool with fewer negatives than `hits`, and for too few pairs that are no links.
    """
    experiment, mesh, graph = plan.experiment, plan.mesh, links.message
    data = f"data {experiment.data.name}"
    if graph.edges.shape[1] > EDGES_AT_ONCE:
        found = f"{graph.edges.shape[1]} of links to train on"
        allowed = f"at most {EDGES_AT_ONCE} to evaluate links by; test_steps 0 beyond"
        raise InputError(data, "edges", found, allowed)
    pools = {split: _pool(plan, links, split, data) for split in SPLITS["test"]}
    sampler = NeighborSampler(graph, (MOST_NEIGHBOURS,) * hops(plan.layer_specs), experiment.seed)
    parts = range(experiment.total_chunks)[plan.replica_slice]

    def share(of: Tensor, part: int) -> Tensor:
        return of.tensor_split(experiment.total_chunks)[part]

    def chunk(part: int) -> GraphChunk:
        own = {split: share(getattr(links, split), part) for split in pools}
        pairs = {split: torch.cat((own[split], pools[split])) for split in own}
        nodes = torch.cat([*pairs.values()]).unique()
        targets = {split: link_targets(nodes, pairs[split], len(own[split])) for split in own}
        return replace(sampler.chunk(nodes, 0), targets=targets, sampled=False)

    chunks = [chunk(part) for part in parts]
    inputs = stage_inputs(graph, chunks, plan, copied_rows)
    # The places of links among those to validate, then to test. They are not nodes: each
    # micro-batch has those of the pools, which would be counted several times.
    val, test = torch.arange(len(links.val) + len(links.test)).split(
        [len(links.val), len(links.test)]
    )
    ids = torch.cat([share(places, part) for part in parts for places in (val, test)]).numpy()
    checksum = crc32(each.nodes for each in chunks)
    on_device = [each.to(mesh.device) for each in chunks]
    return RepeatedBatch(plan, on_device, inputs, ids, checksum, {"test": len(links.test)})


def _pool(plan: BatchPlan, links: LinkSplit, split: str, data: str) -> Tensor:
    task, own = plan.experiment.task, getattr(links, split)
    assert task is not None
    count = min(len(own), task.pool)
    if count < task.hits:
        allowed = f"at most {count}, the negatives that links of the {split} split have"
        raise InputError(data, "task.hits", task.hits, allowed)
    return pool(links.joined, links.message.nodes, count, plan.experiment.seed, split)

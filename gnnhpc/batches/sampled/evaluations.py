"""Evaluations of a sampled run: whole graphs layer by layer, sampled neighbours, and links."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, Batch, BatchPlan, Loading
from gnnhpc.batches.graph_batch import (
    Evaluation,
    RepeatedBatch,
    chunk_batch,
    copied_rows,
    crc32,
    input_rows,
    label_counts,
    stage_inputs,
)
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features
from gnnhpc.batches.sampled.training_samples import edges_of, link_targets
from gnnhpc.batches.shuffle import cut_evenly
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import EVALUATED_STEP, MOST_NEIGHBOURS
from gnnhpc.graphs.blocks import FullGraph, GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.layerwise import EDGES_AT_ONCE, LayerwiseRows
from gnnhpc.graphs.link_split import LinkSplit, pool
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
        nodes = (torch.arange(graph.nodes) + own.start) % graph.nodes
        chunk = GraphChunk(
            nodes=nodes,
            rows=(graph.nodes,) * depth + (len(own),),
            blocks=(),
            degree=sampler.indptr.diff()[nodes] + 1,
            targets=graph.targets(nodes[: len(own)]),
            own=len(own),
            full=FullGraph.of(graph),
            row_blocks=LayerwiseRows(
                *(one_hop, sampler.indptr, mine, own, depth), mesh.sum_over_replicas
            ),
        )
        chunks.append(chunk)
    inputs = stage_inputs(graph, chunks, plan, input_rows)
    ids = torch.arange(mine.start, mine.stop)
    return RepeatedBatch(plan, chunks, inputs, ids.numpy(), crc32([ids]), label_counts(graph))


class SampledEvaluation(Evaluation):
    """One mini-batch of all nodes to validate and to test, over sampled neighbours.

    Replicas, and their micro-batches, have consecutive ones. Every evaluation samples the same
    neighbours, so that two differ only by the training between them.
    """

    def __init__(self, plan: BatchPlan, graph: Graph, features: Features) -> None:
        sampling = plan.experiment.sampling
        assert sampling is not None
        self._plan, self._features = plan, features
        self._sampler = NeighborSampler(
            graph, sampling.fanouts, plan.experiment.seed, semantics=sampling.semantics
        )
        mesh = plan.mesh
        nodes = (graph.masks["val"] | graph.masks["test"]).nonzero().flatten()
        mine = cut_evenly(range(len(nodes)), mesh.layout.replicas)[mesh.replica]
        parts = cut_evenly(mine, plan.experiment.microbatches)
        self._seeds = [nodes[part.start : part.stop] for part in parts]
        self._own = nodes[mine.start : mine.stop]
        self._valid_targets = label_counts(graph)

    def batch(self, phase: Phase, step: int) -> Batch:
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


def evaluate_links(plan: BatchPlan, links: LinkSplit) -> RepeatedBatch:
    """One mini-batch of the embeddings of links' ends, over all neighbours in the message graph.

    Each micro-batch of each replica has its share of the links to validate and to test, and all
    negatives, so that the sums over micro-batches are those of one process.

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
    task, pools = experiment.task, dict[str, Tensor]()
    assert task is not None
    for split in SPLITS["test"]:
        count = min(len(getattr(links, split)), task.pool)
        if count < task.hits:
            allowed = f"at most {count}, the negatives that links of the {split} split have"
            raise InputError(data, "task.hits", task.hits, allowed)
        pools[split] = pool(links.joined, graph.nodes, count, experiment.seed, split)
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

"""Evaluations of a sampled run: of the whole graph, at once or by layers, of samples, and of links.

What is evaluated is the same every time: it is made once, and two evaluations differ only by the
training between them. Replicas, and their micro-batches, have consecutive nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_batch import RepeatedBatch, copied_rows, crc32, input_rows
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.training_samples import link_targets
from gnnhpc.batches.shuffle import cut_evenly
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.experiment.sampling import EVALUATED_STEP, MOST_NEIGHBOURS
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.link_split import LinkSplit, pool
from gnnhpc.graphs.node_features import Rows, take_rows
from gnnhpc.kernels.sample_neighbors import is_here

EDGES_AT_ONCE = 8_000_000
"""The most edges into a block of rows: three arrays of 64 MB, and one copy of their inputs."""


def build_evaluation(
    plan: BatchPlan, graph: Graph, links: LinkSplit | None
) -> RepeatedBatch | ChunkBatches:
    """What the experiment asks for; a large graph is evaluated layer by layer."""
    sampling = plan.experiment.sampling
    assert sampling is not None
    if links is not None:
        return evaluate_links(plan, links)
    if sampling.evaluation == "sampled":
        return evaluate_sampled(plan, graph)
    large = graph.edges.shape[1] > EDGES_AT_ONCE
    if large and is_here() and plan.mesh.device.type == "cpu":
        return evaluate_by_layers(plan, graph)
    return ChunkBatches(replace(plan, experiment=plan.experiment.whole_graph), graph)


def evaluate_sampled(plan: BatchPlan, graph: Graph) -> RepeatedBatch:
    """One mini-batch of all nodes to validate and to test, over sampled neighbours."""
    experiment, mesh = plan.experiment, plan.mesh
    sampling = experiment.sampling
    assert sampling is not None
    sampler = NeighborSampler(
        graph, sampling.fanouts, experiment.seed, semantics=sampling.semantics
    )
    nodes = (graph.masks["val"] | graph.masks["test"]).nonzero().flatten()
    mine = cut_evenly(range(len(nodes)), mesh.layout.replicas)[mesh.replica]
    own = nodes[mine.start : mine.stop]
    chunks = []
    for part in cut_evenly(mine, experiment.microbatches):
        seeds = nodes[part.start : part.stop]
        targets = graph.targets(seeds, splits=SPLITS["test"])
        chunks.append(sampler.chunk(seeds, EVALUATED_STEP, targets=targets))
    return RepeatedBatch(plan, graph, chunks, input_rows, own.numpy(), crc32([own]))


def evaluate_by_layers(plan: BatchPlan, graph: Graph) -> RepeatedBatch:
    """One mini-batch of all nodes over all neighbours, computed layer by layer on CPUs."""
    mesh, depth = plan.mesh, hops(plan.layer_specs)
    mine = cut_evenly(range(graph.nodes), mesh.layout.replicas)[mesh.replica]
    one_hop = NeighborSampler(graph, (MOST_NEIGHBOURS,), plan.experiment.seed)
    chunks = []
    for own in cut_evenly(mine, plan.experiment.microbatches):
        nodes = (torch.arange(graph.nodes) + own.start) % graph.nodes
        chunk = GraphChunk(
            nodes=nodes,
            rows=(graph.nodes,) * depth + (len(own),),
            blocks=(),
            degree=one_hop.indptr.diff()[nodes] + 1,
            targets=graph.targets(nodes[: len(own)], splits=SPLITS["test"]),
            own=len(own),
            row_blocks=LayerwiseRows(one_hop, mine, own, depth, mesh.sum_over_replicas),
        )
        chunks.append(chunk)
    ids = torch.arange(mine.start, mine.stop)
    return RepeatedBatch(plan, graph, chunks, input_rows, ids.numpy(), crc32([ids]))


@dataclass(frozen=True)
class LayerwiseRows:
    """The rows that this replica computes of every layer, in blocks, so that memory never holds all
    edges.

    Each layer takes the activations of all nodes and gives those of all nodes, over all neighbours.
    Replicas compute a share of the rows each and exchange them after every layer but the last. What
    enters the first layer has the nodes of `own` first, then the others, cyclically; hidden rows
    are in the order of nodes.
    """

    one_hop: NeighborSampler
    """Makes a chunk of some nodes and all their neighbours, for one layer."""
    mine: range
    """The nodes whose hidden rows this replica computes."""
    own: range
    """The nodes whose output rows this micro-batch computes."""
    hops: int
    exchange: Callable[[Tensor], None]
    """Sums a tensor over replicas, in place."""

    def through(self, layer: Callable[[Rows, GraphChunk], Tensor], x: Rows, hop: int) -> Tensor:
        """Apply a layer to all rows: returns [nodes, ...], or [own, ...] after the last hop."""
        nodes, last = self.one_hop.graph.nodes, hop == self.hops - 1
        rows = self.own if last else self.mine
        parts = []
        for chunk in self._pieces(rows):
            places = chunk.nodes if hop else (chunk.nodes - self.own.start) % nodes
            parts.append(layer(take_rows(x, places), chunk))
        computed = torch.cat(parts)
        if last or len(rows) == nodes:
            return computed
        everyone = computed.new_zeros(nodes, *computed.shape[1:])
        everyone[rows.start : rows.stop] = computed
        self.exchange(everyone)
        return everyone

    def _pieces(self, rows: range) -> Iterator[GraphChunk]:
        """Chunks of consecutive nodes with at most `EDGES_AT_ONCE` edges into them; the blocks of
        all layers are the same."""
        first, indptr = rows.start, self.one_hop.indptr
        while first < rows.stop:
            most = int(indptr[first]) + EDGES_AT_ONCE
            stop = int(torch.searchsorted(indptr, most, right=True)) - 1
            stop = min(max(stop, first + 1), rows.stop)
            chunk = self.one_hop.chunk(torch.arange(first, stop), 0, targets={})
            yield replace(chunk, blocks=tuple(chunk.blocks) * self.hops, sampled=False)
            first = stop


def evaluate_links(plan: BatchPlan, links: LinkSplit) -> RepeatedBatch:
    """One mini-batch of the embeddings of links' ends, over all neighbours in the message graph.

    Each micro-batch of each replica has its share of the links to validate and to test, and all
    negatives, so that the sums over micro-batches are those of one process.

    The targets of a split are int64 [links + pool, 3]: the rows of a pair's two nodes, and 1 for a
    link; links come before the pool. Raises InputError for a graph too large to be computed at
    once, for a pool with fewer negatives than `hits`, and for too few pairs that are no links.
    """
    experiment, graph = plan.experiment, links.message
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
        return replace(sampler.chunk(nodes, 0, targets=targets), sampled=False)

    chunks = [chunk(part) for part in parts]
    # The places of links among those to validate, then to test. They are not nodes: each
    # micro-batch has those of the pools, which would be counted several times.
    val, test = torch.arange(len(links.val) + len(links.test)).split(
        [len(links.val), len(links.test)]
    )
    ids = torch.cat([share(places, part) for part in parts for places in (val, test)]).numpy()
    checksum = crc32(each.nodes for each in chunks)
    counts = {"test": len(links.test)}
    return RepeatedBatch(plan, graph, chunks, copied_rows, ids, checksum, counts)

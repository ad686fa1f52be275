"""Sampled mini-batches of nodes and links."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.sampled.dgl_loader import DglLoader
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.training_samples import RequestedNodes, TrainingLinks
from gnnhpc.batches.shuffle import Share
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.kernels.sample_neighbors import Drawn, Layer, Memory, Sampler
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(
    planted,
    kind="sampling and links",
    mechanism="engine-parity",
    words="outputs: layer0.convolution",
)


@defect(cell=cells.SAMPLED, at=(Sampler, "draw"))
def the_last_candidate_never_sampled(
    original: Any, sampler: Sampler, layer: Layer, memory: Memory
) -> Drawn:
    """As in issue 385 of torch-sparse: of each node the last neighbour is replaced by the first."""
    sampled: Drawn = original(sampler, layer, memory)
    targets = sampler.nodes[: len(sampled.indptr) - 1]
    last, first = sampler.indptr[targets + 1] - 1, sampler.indptr[targets]
    target = torch.repeat_interleave(torch.arange(len(targets)), sampled.indptr.diff())
    is_last = sampled.edge == last[target]
    rows = {node: row for row, node in enumerate(sampler.nodes.tolist())}
    edge, source = sampled.edge.clone(), sampled.source.clone()
    for place in is_last.nonzero().flatten().tolist():
        other = int(first[target[place]])
        row = rows.get(int(sampler.columns[other]))
        if row is not None:
            edge[place], source[place] = other, row
    return dataclasses.replace(sampled, edge=edge, source=source)


@defect(cell=cells.SAMPLED, words="rows are of other nodes", at=(NeighborSampler, "chunk"))
def the_sample_of_the_step_before(
    original: Any, sampler: NeighborSampler, seeds: Tensor, step: int, *rest: Any, **memory: Any
) -> GraphChunk:
    chunk: GraphChunk = original(sampler, seeds, max(step - 1, 0), *rest, **memory)
    return chunk


@defect(cell=cells.SAMPLED_DGL)
def edges_of_the_step_before_from_a_library() -> None:
    """The sources of the edges are nodes of the step before."""
    before: list[Tensor] = []

    def stale(original: Any, sampler: DglLoader, sampled: Any) -> GraphChunk:
        nodes, seeds, graphs = sampled
        mixed = nodes.clone()
        for old in before:
            count = min(len(nodes), len(old)) - len(seeds)
            mixed[len(nodes) - count :] = old[len(old) - count :]
        before[:] = [nodes]
        chunk: GraphChunk = original(sampler, (mixed, seeds, graphs))
        return chunk

    around(DglLoader, "chunk_of", stale)


@defect(cell=cells.LINKS, at=(TrainingLinks, "requested"))
def predicted_links_in_the_message_graph(
    original: Any, learnt: TrainingLinks, share: Share
) -> tuple[RequestedNodes, ...]:
    asked = original(learnt, share)
    return tuple(dataclasses.replace(each, without=None) for each in asked)


@defect(
    cell=cells.LINKS, words="of 300 train targets are not those", at=(TrainingLinks, "negatives")
)
def negative_samples_that_are_edges(
    original: Any, links: TrainingLinks, kept: Tensor, *args: Any
) -> Tensor:
    sampled: Tensor = original(links, kept, *args)
    edges = links._edges
    joined = edges.source[edges.indptr[kept].clamp(max=len(edges.source) - 1)].long()
    sampled[::9] = joined[::9, None]
    return sampled

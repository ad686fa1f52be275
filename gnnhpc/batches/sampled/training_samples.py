"""What a sampled step trains on: nodes with their labels, or links with negatives.

A loader samples the neighbours of the nodes that each micro-batch requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs, Loading
from gnnhpc.batches.shuffle import Share
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.sampling import Semantics
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.link_split import LinkSplit
from gnnhpc.kernels.sample_neighbors import negatives


@dataclass(frozen=True)
class RequestedNodes:
    """The nodes whose outputs one micro-batch needs."""

    nodes: Tensor
    """int64 [n], ascending."""
    targets: Tensor
    """What to train on: the labels of the nodes, or pairs of them as `link_targets` returns."""
    without: Tensor | None = None
    """The numbers of edges that no layer may use, int64 [edges], ascending."""


class TrainingNodes:
    """The nodes of a graph's training split, which replicas and micro-batches share."""

    predictions = 1
    """The terms that a sample adds to the loss."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.train = graph.masks["train"].nonzero().flatten()

    def requested(self, share: Share) -> tuple[RequestedNodes, ...]:
        """The nodes that each micro-batch of a replica's share needs."""
        labels = self.graph.labels
        return tuple(RequestedNodes(seeds, labels[seeds]) for seeds in share.seeds)


class TrainingLinks:
    """Links to train on, each with `count` negatives.

    No micro-batch of any replica sees an edge of a link that the step predicts, in either
    direction, so that replicas compute together what one process computes alone.
    """

    def __init__(self, split: LinkSplit, count: int, seed: int) -> None:
        """Raises InputError for a graph with a node that is joined to all others."""
        self.graph, self._split, self._count, self._seed = split.message, split, count, seed
        self.train = torch.arange(len(split.train))
        """The numbers of the links."""
        self.predictions = 1 + count
        self._edges, others = split.message.in_edges, split.message.nodes - 1
        degree = self._edges.degrees
        if int(degree.max()) >= others:
            found = f"node {int(degree.argmax())}, joined to all {others} others"
            allowed = "a node that it is not joined to, for a negative of its links"
            raise InputError(f"data {split.message.name}", "task", found, allowed)

    def requested(self, share: Share) -> tuple[RequestedNodes, ...]:
        without = self._split.both[torch.from_numpy(share.whole)].flatten().sort().values
        return tuple(self._of(numbers, share.step, without) for numbers in share.seeds)

    def _of(self, numbers: Tensor, step: int, without: Tensor) -> RequestedNodes:
        ends = self._split.train[numbers]
        others = self.negatives(ends[:, 0], numbers, step)
        kept = ends[:, :1].expand_as(others)
        pairs = torch.cat((ends, torch.stack((kept, others), 2).view(-1, 2)))
        nodes = pairs.unique()
        return RequestedNodes(nodes, link_targets(nodes, pairs, len(ends)), without)

    def negatives(self, kept: Tensor, numbers: Tensor, step: int) -> Tensor:
        """Random nodes in place of the second ends of links (u, v), int64 [links, count].

        `numbers` int64 [links] are the links, `kept` their first ends. Each node that is neither u
        nor joined to u is equally likely, by a choice that is keyed by seed, step, link number and
        place: it depends on no rank, no thread and no other link. Only the message graph is known
        here, so a negative may be a link to validate or to test.
        """
        graph = (self._edges.indptr, self._edges.source)
        return negatives(graph, self._seed, step, kept, numbers, self._count)


def link_targets(nodes: Tensor, pairs: Tensor, links: int) -> Tensor:
    """Targets int64 [pairs, 3]: the rows of each pair's two nodes among `nodes`, which ascend, and
    1 if it is one of the first `links`, else 0."""
    labels = (torch.arange(len(pairs)) < links).long()
    return torch.cat((torch.searchsorted(nodes, pairs), labels[:, None]), 1)


TrainingSamples = TrainingNodes | TrainingLinks


@dataclass(frozen=True)
class SampledChunks:
    """One replica's mini-batch of a step, as a loader gives it."""

    share: Share
    chunks: tuple[GraphChunk, ...]
    """One for each micro-batch."""
    checksum: int
    """CRC-32 of the nodes that the chunks own, and of their targets."""
    loading: Loading
    inputs: Sequence[Inputs] | None = None
    """The features of the chunks; None where they are gathered later."""

    def tensors(self) -> Iterator[Tensor]:
        """All of this mini-batch's."""
        for chunk in self.chunks:
            for holder in (chunk, *chunk.present_blocks):
                yield from (x for x in vars(holder).values() if isinstance(x, Tensor))
            yield from chunk.targets.values()
        yield from (x for x in self.inputs or () if isinstance(x, Tensor))


def edges_of(chunks: tuple[GraphChunk, ...], semantics: Semantics = "resample") -> int:
    """The number of edges that were sampled for these chunks, without self-loops.

    With `once` the first layer has all of them, and other layers have some of the same.
    """
    layers = slice(1) if semantics == "once" else slice(None)
    return sum(block.neighbour_count for chunk in chunks for block in chunk.blocks[layers])

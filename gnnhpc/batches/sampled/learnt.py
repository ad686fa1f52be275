"""What a sampled step trains on: nodes with their labels, or links with pairs that are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnnhpc.batches.shuffle import Share
from gnnhpc.graphs.graph import Graph
from gnnhpc.links.negatives import Negatives
from gnnhpc.links.split import LinkSplit


@dataclass(frozen=True)
class Asked:
    """Of one micro-batch: the nodes whose outputs it needs."""

    nodes: Tensor
    """int64 [n], none twice."""
    without: Tensor | None = None
    """Numbers of edges that no layer may use, int64 [edges], ascending."""
    targets: Tensor | None = None
    """Where they are not the labels of the nodes."""


class Learnt(Protocol):
    """The samples of a graph that are shared out, and what each micro-batch needs of the graph."""

    graph: Graph
    """Whose edges are drawn."""
    train: Tensor
    """int64 [samples], ascending: nodes, or the numbers of links."""
    name: str
    """Of the samples, in the plural."""
    predictions: int
    """Terms that a sample adds to the loss."""

    def asked(self, share: Share) -> tuple[Asked, ...]:
        """Of each micro-batch of a replica's share; its `seeds` are of `train`."""
        ...


class NodesLearnt:
    """The nodes that the graph has to train on."""

    name = "nodes to train on"
    predictions = 1

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.train = graph.masks["train"].nonzero().flatten()

    def asked(self, share: Share) -> tuple[Asked, ...]:
        return tuple(Asked(seeds) for seeds in share.seeds)


class LinksLearnt:
    """Links to train on, each with negatives of its own.

    No micro-batch of any replica sees an edge of a link that the step predicts, in either
    direction, so that replicas learn together what one process learns alone.
    Raises InputError for a graph with a node that is joined to all others.
    """

    name = "links to train on"

    def __init__(self, split: LinkSplit, negatives: int, seed: int) -> None:
        self.graph, self._split, self._count = split.message, split, negatives
        self.train = torch.arange(len(split.train))
        self.predictions = 1 + negatives
        self._negatives = Negatives(split.message, seed)

    def asked(self, share: Share) -> tuple[Asked, ...]:
        without = self._split.both[torch.from_numpy(share.whole)].flatten().sort().values
        return tuple(self._of(numbers, share.step, without) for numbers in share.seeds)

    def _of(self, numbers: Tensor, step: int, without: Tensor) -> Asked:
        ends = self._split.train[numbers]
        others = self._negatives.of(ends[:, 0], numbers, step, self._count)
        kept = ends[:, :1].expand_as(others)
        pairs = torch.cat((ends, torch.stack((kept, others), 2).view(-1, 2)))
        nodes = pairs.unique()
        return Asked(nodes, without, link_targets(nodes, pairs, len(ends)))


def link_targets(nodes: Tensor, pairs: Tensor, links: int) -> Tensor:
    """Targets int64 [pairs, 3]: of each pair the rows of its two nodes among `nodes`, which are
    ascending, and 1 if it is one of the first `links`, else 0."""
    labels = (torch.arange(len(pairs)) < links).long()
    return torch.cat((torch.searchsorted(nodes, pairs), labels[:, None]), 1)

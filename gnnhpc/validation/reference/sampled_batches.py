"""Sampled mini-batches, by the documented rule: the edges of each layer, node by node.

All layers of a mini-batch have the same rows here, the nodes that it reaches; the rows that no
later layer uses change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.validation.reference.forward_pass import Activation, EdgeList
from gnnhpc.validation.reference.links import LinkSplit
from gnnhpc.validation.reference.micro_batches import (
    CapturedEdges,
    Ids,
    ReferenceBatch,
    node_features,
    rows_of,
)
from gnnhpc.validation.reference.order import SampleSchedule, evaluated_nodes, split_nodes
from gnnhpc.validation.reference.random_numbers import NeighborSampling

Edges = tuple[Tensor, Tensor, Tensor]
"""Sources, targets and numbers in the graph, int64 [E] each, without self-loops."""


@dataclass(frozen=True)
class Seeds:
    """The nodes whose outputs one micro-batch needs."""

    replica: int
    microbatch: int
    nodes: Ids
    """Ascending."""
    pairs: Ids | None = None
    """[n, 2]: links, and after them their negatives, where links are learnt."""
    links: int = 0
    """How many of the pairs are links."""


@dataclass(frozen=True)
class AllowedEdges:
    """The edges of a graph that may be sampled, with their numbers in it."""

    source: Tensor
    target: Tensor
    number: Tensor
    degrees: Tensor
    """int64 [nodes]"""
    total: int
    """Edges of the graph."""

    @classmethod
    def of(cls, graph: Graph, left_out: Ids | None = None) -> AllowedEdges:
        total = graph.edges.shape[1]
        number = torch.arange(total)
        if left_out is not None:
            number = number[~torch.isin(number, torch.from_numpy(left_out))]
        source, target = graph.edges[:, number]
        return cls(source, target, number, torch.bincount(target, minlength=graph.nodes), total)


class SampledBatches:
    """The mini-batches of one experiment on a graph; of `links` it is the message graph."""

    def __init__(self, experiment: Experiment, graph: Graph, links: LinkSplit | None) -> None:
        self._experiment, self._links = experiment, links
        self.features: Activation = node_features(graph)
        self.whole = graph
        self.trained = training_graph(experiment, graph)
        self._all_edges = AllowedEdges.of(graph)
        self._training_edges = AllowedEdges.of(self.trained)

    def train_seeds(self, step: int) -> Iterator[Seeds]:
        """The nodes of each micro-batch of all replicas in a training step."""
        links, experiment = self._links, self._experiment
        train = np.flatnonzero(self.trained.masks["train"].numpy())
        if links is not None:
            train = np.arange(len(links.by_split["train"]))
        schedule = SampleSchedule.of(experiment, len(train))
        for replica in range(experiment.layout.replicas):
            mine = split_nodes(train[schedule.share(step, replica)], experiment.microbatches)
            for microbatch, samples in enumerate(mine):
                if links is None:
                    yield Seeds(replica, microbatch, samples)
                else:
                    pairs = links.pairs(samples, step)
                    yield Seeds(replica, microbatch, np.unique(pairs), pairs, len(samples))

    def test_seeds(self) -> Iterator[Seeds]:
        """The nodes of each micro-batch of all replicas in a sampled evaluation."""
        val, test = (self.whole.masks[split].numpy() for split in ("val", "test"))
        for replica in range(self._experiment.layout.replicas):
            parts = evaluated_nodes(self._experiment, val, test, replica)
            for microbatch, nodes in enumerate(parts):
                yield Seeds(replica, microbatch, nodes)

    def allowed(self, step: int) -> AllowedEdges:
        """The edges that a step may sample: none of the links that it predicts."""
        if step == EVALUATED_STEP:
            return self._all_edges
        if self._links is None:
            return self._training_edges
        schedule = SampleSchedule.of(self._experiment, len(self._links.by_split["train"]))
        predicted = self._links.edges_of(schedule.global_batch(step))
        return AllowedEdges.of(self.trained, predicted)

    def train(self, step: int, captured: CapturedEdges | None) -> list[ReferenceBatch]:
        """The micro-batches of a training step; `captured` has a library's sampled edges."""
        edges, batches = self.allowed(step), []
        for seeds in self.train_seeds(step):
            layers = self.layers(edges, seeds, step, captured)
            ids = reached(seeds.nodes, layers)
            if seeds.pairs is not None:
                targets = pair_targets(seeds.pairs, seeds.links, ids)
            else:
                targets = _labels(self.trained, torch.from_numpy(seeds.nodes), ids)
            batches.append(self._batch(seeds, ids, edges, layers, {"train": targets}))
        return batches

    def test(self) -> list[ReferenceBatch]:
        """The micro-batches of a sampled evaluation."""
        batches = []
        for seeds in self.test_seeds():
            layers = self.layers(self._all_edges, seeds, EVALUATED_STEP, None)
            ids, nodes = reached(seeds.nodes, layers), torch.from_numpy(seeds.nodes)
            targets = {
                split: _labels(self.whole, nodes[mask[nodes]], ids)
                for split, mask in self.whole.masks.items()
            }
            batches.append(self._batch(seeds, ids, self._all_edges, layers, targets))
        return batches

    def layers(
        self, edges: AllowedEdges, seeds: Seeds, step: int, captured: CapturedEdges | None
    ) -> list[Edges]:
        """The edges of each layer that uses neighbours, the last layer's first."""
        if captured is None:
            return _sampled_layers(self._experiment, edges, torch.from_numpy(seeds.nodes), step)
        found = captured[step, seeds.replica, seeds.microbatch].layers[::-1]
        return [
            (torch.from_numpy(s), torch.from_numpy(t), torch.from_numpy(n)) for s, t, n in found
        ]

    def _batch(
        self,
        seeds: Seeds,
        ids: Tensor,
        edges: AllowedEdges,
        layers: Sequence[Edges],
        targets: Mapping[str, Tensor],
    ) -> ReferenceBatch:
        return ReferenceBatch(
            rows_of(self.features, ids),
            targets,
            seeds.replica,
            seeds.microbatch,
            nodes=ids,
            layer_edges=tuple(_edge_list(edges, ids, *layer) for layer in reversed(layers)),
        )


def training_graph(experiment: Experiment, graph: Graph) -> Graph:
    """The graph whose edges training may use: all of them, or those between training nodes."""
    if experiment.sampling is None or not experiment.sampling.inductive:
        return graph
    source, target = graph.edges
    train = graph.masks["train"]
    kept = (train[source] & train[target]).nonzero().flatten()
    return replace(graph, edges=graph.edges[:, kept], stored_in_edges=None)


def pair_targets(pairs: Ids, links: int, ids: Tensor) -> Tensor:
    """int64 [n, 3]: the rows of each pair's two nodes among `ids`, which ascend, and 1 for the
    first `links` pairs, 0 for the others."""
    rows = torch.searchsorted(ids, torch.from_numpy(pairs))
    return torch.column_stack((rows, (torch.arange(len(pairs)) < links).long()))


def reached(seeds: Ids, layers: Sequence[Edges]) -> Tensor:
    """All nodes of a mini-batch, int64 ascending."""
    found: Tensor = torch.cat([torch.from_numpy(seeds), *(s for s, _, _ in layers)]).unique()
    return found


def _tensors(source: Ids, target: Ids, number: Ids) -> Edges:
    return torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(number)


def _labels(graph: Graph, nodes: Tensor, ids: Tensor) -> Tensor:
    """int64 [ids]: the labels of `nodes`, IGNORED for the other rows."""
    targets = torch.full((len(ids),), IGNORED)
    targets[torch.searchsorted(ids, nodes)] = graph.labels[nodes]
    return targets


def _sampled_layers(
    experiment: Experiment, edges: AllowedEdges, seeds: Tensor, step: int
) -> list[Edges]:
    sampling, degrees = experiment.sampling, edges.degrees
    assert sampling is not None
    first = degrees.cumsum(0) - degrees
    nodes, layers = seeds.unique(), []
    for hop, fanout in enumerate(sampling.fanouts):
        number = hop if sampling.semantics == "resample" else 0
        rule = NeighborSampling(fanout, experiment.seed, step, number, sampling.replace)
        places = rule.places(nodes.tolist(), degrees[nodes].tolist())
        counts = torch.tensor([len(each) for each in places], dtype=torch.int64)
        target = torch.repeat_interleave(nodes, counts)
        chosen = first[target] + torch.tensor([p for each in places for p in each]).long()
        source = edges.source[chosen]
        layers.append((source, target, edges.number[chosen]))
        nodes = torch.cat((nodes, source)).unique()
    return layers


def _edge_list(
    edges: AllowedEdges, ids: Tensor, source: Tensor, target: Tensor, number: Tensor
) -> EdgeList:
    """One layer's edges between the rows of `ids`, ascending nodes, with a self-loop each."""
    rows = torch.arange(len(ids))
    sampled = torch.bincount(target, minlength=len(edges.degrees))
    return EdgeList(
        len(ids),
        torch.cat((torch.searchsorted(ids, source), rows)),
        torch.cat((torch.searchsorted(ids, target), rows)),
        torch.cat((number, edges.total + ids)),
        (edges.degrees - sampled)[ids],
        sampled=True,
    )

"""Sampled mini-batches, by the documented rule: the edges of each layer, node by node.

All layers of a mini-batch have the same rows here, the nodes that it reaches; the rows that no
later layer uses change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph, block_weights
from gnnhpc.graphs.link_split import pool, split_links
from gnnhpc.validation.reference.batches import Ids, block_of
from gnnhpc.validation.reference.random_numbers import (
    SampleSchedule,
    negatives_of,
    node_numbers,
    part_of,
    pick,
    split_nodes,
)

Edges = tuple[Tensor, Tensor, Tensor]
"""Sources, targets and numbers in the graph, int64 [E] each, without self-loops."""
CapturedEdges = Mapping[tuple[int, int, int], Sequence[Edges]]
"""The edges that a library's sampler gave, which no rule predicts: by step, replica and micro-batch
those of each layer that uses neighbours, the last layer's first."""


Seeds = tuple[Tensor, dict[str, Tensor] | None]
"""The nodes whose outputs a micro-batch needs, int64 ascending; and in link prediction the targets
of links and their negatives."""


class ReferenceLinks:
    """The links of a graph and their negatives; splits and pools are the run's own."""

    def __init__(self, experiment: Experiment, graph: Graph) -> None:
        assert experiment.task is not None
        self.task, self._seed = experiment.task, experiment.seed
        self.split = split_links(graph, self._seed, self.task.val_share, self.task.test_share)
        self._edges = self.split.message.edges.numpy()

    def seeds(self, numbers: Ids, step: int) -> Seeds:
        """The ends of a micro-batch's links and of the negatives of each."""
        links, count = self.split.train.numpy()[numbers], self.task.negatives
        message = self._edges, self.split.message.nodes, self._seed
        others = negatives_of(links[:, 0], numbers, *message, step, count)
        negatives = np.column_stack((np.repeat(links[:, 0], count), others))
        pairs = np.concatenate((links, negatives))
        nodes = torch.from_numpy(np.unique(pairs))
        return nodes, {"train": pair_targets(pairs, len(links), nodes)}

    def evaluated(self, place: int, parts: int, ids: Tensor) -> dict[str, Tensor]:
        """The targets of one of `parts` micro-batches in an evaluation, as `pair_targets` has them:
        of each split its links, and after them its pool of negatives."""
        targets, nodes = {}, self.split.message.nodes
        for split, every in (("val", self.split.val.numpy()), ("test", self.split.test.numpy())):
            links = np.array_split(every, parts)[place]
            count = min(len(every), self.task.pool)
            negatives = pool(self.split.joined, nodes, count, self._seed, split)
            pairs = np.concatenate((links, negatives.numpy()))
            targets[split] = pair_targets(pairs, len(links), ids)
        return targets


class SampledMiniBatches:
    """The mini-batches of one experiment on a graph; of `links` it is the message graph."""

    def __init__(self, experiment: Experiment, graph: Graph, links: ReferenceLinks | None) -> None:
        self._experiment, self._links = experiment, links
        self._whole, self._trained = graph, graph
        if experiment.sampling is not None and experiment.sampling.inductive:
            # Training uses the edges between training nodes alone.
            self._trained = graph.among(graph.masks["train"])

    def chunks(self, step: int, captured: CapturedEdges | None) -> list[GraphChunk]:
        """The chunk of each micro-batch; of the edges that a library sampled where it trains."""
        is_evaluated, chunks = step == EVALUATED_STEP, []
        graph = self._whole if is_evaluated else self._trained
        allowed = self._allowed_edges(graph, step)
        seeds = self._test_seeds() if is_evaluated else self._train_seeds(step)
        for place, (nodes, targets) in enumerate(seeds):
            if captured is None or is_evaluated:
                layers: Sequence[Edges] = self._sampled_layers(graph, allowed, nodes, step)
            else:
                layers = captured[step, *divmod(place, self._experiment.microbatches)]
            # A library's layers may compute more rows than the later ones need.
            all_rows = captured is not None
            chunk = chunk_of_edges(graph, nodes, layers, allowed, all_rows=all_rows)
            chunks.append(replace(chunk, sampled=True, targets=targets or chunk.targets))
        return chunks

    def _train_seeds(self, step: int) -> Iterator[Seeds]:
        links, experiment = self._links, self._experiment
        train = np.flatnonzero(self._trained.masks["train"].numpy())
        if links is not None:
            train = np.arange(len(links.split.train))
        schedule = SampleSchedule(experiment, len(train))
        for replica in range(experiment.layout.replicas):
            share = train[schedule.share(step, replica)]
            for samples in split_nodes(share, experiment.microbatches):
                yield (torch.from_numpy(samples), None) if not links else links.seeds(samples, step)

    def _test_seeds(self) -> Iterator[Seeds]:
        """The nodes to validate and to test are cut into replicas, and these into micro-batches."""
        val, test = (self._whole.masks[split].numpy() for split in ("val", "test"))
        layout, count = self._experiment.layout, self._experiment.microbatches
        for replica in range(layout.replicas):
            mine = part_of(np.flatnonzero(val | test), replica, layout.replicas)
            for microbatch in range(count):
                yield torch.from_numpy(part_of(mine, microbatch, count)), None

    def _allowed_edges(self, graph: Graph, step: int) -> Tensor:
        """The numbers of the edges that a step may sample: none of the links that it predicts."""
        number = torch.arange(graph.edges.shape[1])
        if step != EVALUATED_STEP and self._links is not None:
            schedule = SampleSchedule(self._experiment, len(self._links.split.train))
            predicted = torch.from_numpy(schedule.global_batch(step))
            number = number[~torch.isin(number, self._links.split.both[predicted])]
        return number

    def _sampled_layers(
        self, graph: Graph, allowed: Tensor, seeds: Tensor, step: int
    ) -> list[Edges]:
        sampling, (sources, targets) = self._experiment.sampling, graph.edges[:, allowed]
        assert sampling is not None
        degrees = torch.bincount(targets, minlength=graph.nodes)
        first = degrees.cumsum(0) - degrees
        nodes, layers = seeds.unique(), []
        for hop, fanout in enumerate(sampling.fanouts):
            layer = hop if sampling.semantics == "resample" else 0
            # For each node, which of its edges are sampled, counted from 0.
            places = [
                range(degree)
                if degree <= fanout
                else pick(node_numbers(self._experiment.seed, node, step, layer), degree, fanout)
                for node, degree in zip(nodes.tolist(), degrees[nodes].tolist(), strict=True)
            ]
            counts = torch.tensor([len(each) for each in places], dtype=torch.int64)
            target = torch.repeat_interleave(nodes, counts)
            chosen = first[target] + torch.tensor([p for each in places for p in each]).long()
            source = sources[chosen]
            layers.append((source, target, allowed[chosen]))
            nodes = torch.cat((nodes, source)).unique()
        return layers


def pair_targets(pairs: Ids, links: int, ids: Tensor) -> Tensor:
    """int64 [n, 3]: the rows of each pair's two nodes among `ids`, which ascend, and 1 for the
    first `links` pairs, 0 for the others."""
    rows = torch.searchsorted(ids, torch.from_numpy(pairs))
    return torch.column_stack((rows, (torch.arange(len(pairs)) < links).long()))


def chunk_of_edges(
    graph: Graph,
    seeds: Tensor,
    layers: Sequence[Edges],
    allowed: Tensor,
    *,
    all_rows: bool = False,
) -> GraphChunk:
    """The chunk that computes the nodes `seeds`, int64 ascending, without padding.

    `layers` has the edges of each layer that uses neighbours, the last layer's first; those with
    the numbers `allowed`, int64 [E], count in degrees. The nodes that a layer adds follow the
    others, ascending; with `all_rows` all layers compute all of them.
    """
    reached = torch.cat([seeds, *(source for source, _, _ in layers)]).unique()
    nodes = torch.cat((seeds, reached[~torch.isin(reached, seeds)])) if all_rows else seeds
    place, rows, blocks = torch.full((graph.nodes,), -1), [len(nodes)], []
    for source, target, number in layers:
        computed = nodes
        nodes = torch.cat((nodes, source[~torch.isin(source, nodes)].unique()))
        place[nodes] = torch.arange(len(nodes))
        # The edges into each computed row, its self-loop last.
        rows_in, rows_out = (place[torch.cat((each, computed))] for each in (source, target))
        numbers = torch.cat((number, graph.edges.shape[1] + computed))
        block = block_of(rows_in, rows_out, numbers, len(nodes), len(computed))
        blocks.append(replace(block, edge_weight=block_weights(graph.edge_weight, block.edge)))
        rows.append(len(nodes))
    into, weighted = graph.edges[1, allowed], None
    if graph.edge_weight is not None:
        # A self-loop counts 1.
        sums = torch.ones(graph.nodes, dtype=torch.float64)
        weighted = sums.index_add_(0, into, graph.edge_weight[allowed].double())[nodes]
    return GraphChunk(
        nodes=nodes,
        rows=tuple(rows[::-1]),
        blocks=tuple(blocks[::-1]),
        degree=torch.bincount(into, minlength=graph.nodes)[nodes] + 1,
        targets=graph.targets(seeds),
        own=len(seeds),
        weighted_degree=weighted,
    )

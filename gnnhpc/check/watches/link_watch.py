"""Holds mini-batches of links, and the links that are judged, against a second working-out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph import Ids, LessEdges, PlainGraph
from gnnhpc.check.plain.links import PlainLinks
from gnnhpc.check.plain.shares import PlainShares
from gnnhpc.check.watches.graph_watch import GraphWatch
from gnnhpc.check.watches.sampled_watch import SampledWatch
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

JUDGED = ("val", "test")


@dataclass
class JudgedLinks(GraphWatch):
    """Of evaluations: the message graph, and each micro-batch's links with the whole pool."""

    learns: Experiment | None = None
    """The experiment; `experiment` is what it evaluates."""
    _known: dict[int, tuple[Ids, dict[str, Ids]]] = dataclasses.field(default_factory=dict)
    """By micro-batch over all replicas: its nodes, and of each split its pairs as rows of them."""

    @cached_property
    def links(self) -> PlainLinks:
        assert self.learns is not None
        graph = super().graph
        return PlainLinks.of(self.learns, graph.source, graph.target, graph.nodes)

    @cached_property
    def _message(self) -> PlainGraph:
        links = self.links
        return dataclasses.replace(super().graph, source=links.source, target=links.target)

    @property
    def graph(self) -> PlainGraph:
        return self._message

    @cached_property
    def _judged_codes(self) -> Ids:
        """Of both directions of the links that validate and test."""
        pairs = np.concatenate([self.links.by_split[split] for split in JUDGED])
        both = np.concatenate((pairs, pairs[:, ::-1]))
        return np.asarray(both[:, 0] * self.links.nodes + both[:, 1], dtype=np.int64)

    def judged_cause(self, chunk: GraphChunk) -> str | None:
        """Whether a layer has an edge of a link that validates or tests."""
        nodes = chunk.nodes.cpu().numpy()
        for layer, block in enumerate(chunk.present_blocks):
            source, target = (nodes[part.cpu().numpy()] for part in (block.source, block.target))
            known = np.flatnonzero(np.isin(source * self.links.nodes + target, self._judged_codes))
            if len(known):
                pair = f"{source[known[0]]} to {target[known[0]]}"
                return f"layer {layer} has the edge {pair}, which is judged"
        return None

    def _check_chunks(
        self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]
    ) -> None:
        for m, chunk in enumerate(chunks):
            cause = self.judged_cause(chunk)
            if cause is not None:
                self.findings.add("chunks", phase, step, f"micro-batch {m}: {cause}")
        super()._check_chunks(phase, step, batch, chunks)

    def own_cause(self, phase: Phase, batch: Batch, own: list[Ids]) -> str | None:
        """Samples are links, and the chunks' own nodes are theirs and the pool's."""
        assert self.learns is not None
        first, parts = self.mesh.replica * len(own), self.learns.total_chunks
        for m, nodes in enumerate(own):
            if not np.array_equal(nodes, self._wanted_pairs(first + m)[0]):
                return f"micro-batch {m} has other nodes than its links and their pool"
        numbers = [
            self.links.judged_numbers(place, parts) for place in range(first, first + len(own))
        ]
        if not np.array_equal(np.concatenate(numbers), batch.sample_ids):
            return "its samples are not this replica's of the links to validate and to test"
        return None

    def check_targets(
        self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]
    ) -> None:
        if not self.mesh.has_loss:
            return
        self.findings.looks["targets"] += 1
        for split in JUDGED:
            wanted = self.labels(phase, split, step, batch)
            for microbatch, each in zip(batch.microbatches, wanted, strict=True):
                told = microbatch.targets.get(split)
                if told is None or not np.array_equal(told.cpu().numpy(), each):
                    cause = (
                        f"the {split} links or their pool are others: {self._named(told, batch)}"
                    )
                    self.findings.add("targets", phase, step, cause)
        links = self.labelled(phase, step)
        if batch.labelled != links:
            divided = f"the loss is divided by {batch.labelled}, {phase} has {links} links"
            self.findings.add("targets", phase, step, divided)

    def _named(self, told: Tensor | None, batch: Batch) -> str:
        """What targets are that are not those of the split."""
        if told is None:
            return "there are none"
        for other in JUDGED:
            for wanted in self.labels("test", other, 0, batch):
                if np.array_equal(told.cpu().numpy(), wanted):
                    return f"they are of the {other} split"
        return f"{len(told)} pairs"

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """Pairs as rows of each micro-batch's nodes, its links first."""
        first = self.mesh.replica * len(batch.microbatches)
        return [self._wanted_pairs(first + m)[1][split] for m in range(len(batch.microbatches))]

    def _wanted_pairs(self, place: int) -> tuple[Ids, dict[str, Ids]]:
        if place not in self._known:
            assert self.learns is not None
            parts = self.learns.total_chunks
            pairs = {each: self.links.judged(each, place, parts) for each in JUDGED}
            nodes = np.unique(np.concatenate(list(pairs.values())))
            rows = {
                each: pair_rows(nodes, found, len(self.links.share(each, place, parts)))
                for each, found in pairs.items()
            }
            self._known[place] = nodes, rows
        return self._known[place]

    def labelled(self, phase: Phase, number: int) -> int:
        return len(self.links.by_split[phase])


@dataclass
class LinkWatch(SampledWatch):
    """What a step shares out are links; it draws from the message graph less those links."""

    samples: ClassVar[str] = "links"
    terms: ClassVar[str] = "pairs"
    whole: JudgedLinks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        given = (self.experiment.whole_graph, self.mesh, self.root, self.findings, self.hops)
        self.whole = JudgedLinks(*given, learns=self.experiment)

    @cached_property
    def _shares(self) -> PlainShares:
        numbers = np.arange(len(self.whole.links.by_split["train"]))
        return PlainShares.of(self.experiment, numbers, self.mesh.replica)

    def labelled(self, phase: Phase, number: int) -> int:
        if phase == "test":
            return self.whole.labelled(phase, number)
        assert self.experiment.task is not None
        return self._shares.together(number) * (1 + self.experiment.task.negatives)

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        if phase == "train":
            predicted = self._predicted(step)
            for m, (_, context) in enumerate(given):
                cause = self._seen_cause(context.chunk, predicted)
                cause = cause or self.whole.judged_cause(context.chunk)
                if cause is not None:
                    self.findings.add("chunks", phase, step, f"micro-batch {m}: {cause}")
        super().after(phase, step, number, batch, given)

    def _predicted(self, step: int) -> Ids:
        """Numbers of the edges of the step's links, over all replicas, in both directions."""
        return self.whole.links.edges_of(self._shares.everyone(step))

    def _seen_cause(self, chunk: GraphChunk, predicted: Ids) -> str | None:
        """Whether a layer has an edge of a link that the step predicts."""
        nodes, links = chunk.nodes.cpu().numpy(), self.whole.links
        codes = links.target[predicted] * links.nodes + links.source[predicted]
        for layer, block in enumerate(chunk.present_blocks):
            source, target = (nodes[part.cpu().numpy()] for part in (block.source, block.target))
            known = np.flatnonzero(np.isin(target * links.nodes + source, codes))
            if len(known):
                pair = f"{source[known[0]]} to {target[known[0]]}"
                return f"layer {layer} has the edge {pair}, which the step predicts"
        return None

    def _drawn_from(self, step: int) -> PlainGraph:
        return LessEdges.of(self.whole.graph, self._predicted(step))

    def _pairs(self, step: int, batch: Batch) -> list[tuple[Ids, int]]:
        """Of each micro-batch, and how many of them are links."""
        numbers = self._samples(batch)
        return [(self.whole.links.pairs(each, step), len(each)) for each in numbers]

    def _nodes(self, step: int, batch: Batch) -> list[Ids]:
        return [np.unique(pairs) for pairs, _ in self._pairs(step, batch)]

    def _wanted(self, step: int, batch: Batch) -> list[Ids]:
        return [
            pair_rows(np.unique(pairs), pairs, links) for pairs, links in self._pairs(step, batch)
        ]

    def _other_targets(self, told: Ids, wanted: Ids, step: int, m: int, batch: Batch) -> str:
        if told.shape != wanted.shape:
            return f"micro-batch {m} has {len(told)} pairs in place of {len(wanted)}"
        nodes = batch.microbatches[m].context.chunk.nodes.cpu().numpy()
        found, (pairs, links) = nodes[told[:, :2]], self._pairs(step, batch)[m]
        others = (found != pairs).any(axis=1)
        if not others.any():
            wrong = int((told[:, 2] != wanted[:, 2]).sum())
            return f"{wrong} labels of micro-batch {m} are not its pairs'"
        negatives = found[links:]
        known = negatives[self.whole.links.are_known(negatives)]
        if len(known):
            pair = f"{known[0, 0]} and {known[0, 1]}"
            return f"{len(known)} negatives of micro-batch {m} are links, one of {pair}"
        what = "pairs" if others[:links].any() else "negatives"
        total = int(others.sum())
        return f"{total} {what} of micro-batch {m} are not those that seed, step and link draw"


def pair_rows(nodes: Ids, pairs: Ids, links: int) -> Ids:
    """[n, 3]: of each pair its nodes' places among `nodes`, and 1 for the first `links`, else 0."""
    rows = np.searchsorted(nodes, pairs)
    return np.column_stack((rows, np.arange(len(pairs)) < links)).astype(np.int64)

"""Holds mini-batches of many small graphs against a second reading, graph by graph."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph_set import PlainGraphSet, plain_graph_set
from gnnhpc.check.plain.shares import PlainShares
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.data_watch import Ids, WatchedKind
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.graph_watch import ROWS, row_reader
from gnnhpc.check.watches.union_edges import union_cause
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.context import Context
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Phase
from gnnhpc.spec.experiment import Experiment

_SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


@dataclass
class GraphSetWatch:
    """Of one replica's mini-batches, on whichever of its stages this rank holds."""

    kind: ClassVar[WatchedKind] = "graphs"
    experiment: Experiment
    mesh: Mesh
    root: Path | None
    findings: Findings
    hops: int
    """Layers that use neighbours, over all stages."""

    @cached_property
    def graphs(self) -> PlainGraphSet:
        """Read when first asked for."""
        return plain_graph_set(self.experiment.data, self.root)

    @property
    def chunks(self) -> Mapping[int, ChunkCounts]:
        return {}

    @property
    def nodes_and_edges(self) -> tuple[int, int]:
        return self.graphs.nodes, len(self.graphs.source)

    @cached_property
    def _shares(self) -> PlainShares:
        train = self.graphs.split("train")
        return PlainShares.of(self.experiment, train, self.mesh.replica)

    @cached_property
    def _evaluated(self) -> list[Ids]:
        """Of each micro-batch of this replica the graphs that are evaluated."""
        count = self.experiment.microbatches
        parts = np.array_split(self.graphs.split(*_SPLITS["test"]), self.experiment.total_chunks)
        return parts[self.mesh.replica * count :][:count]

    def check_order(self, step: int, batch: Batch) -> None:
        """In every step: its graphs, and how many the loss is divided by."""
        self.findings.looks["order"] += 1
        told = np.asarray(batch.sample_ids)
        if not np.array_equal(told, self._shares.ids(step)):
            self.findings.add("order", "train", step, self._shares.explain(step, told))
        together = self._shares.together(step)
        if batch.labelled != together:
            divided = f"the loss is divided by {batch.labelled}, the step has {together} graphs"
            self.findings.add("targets", "train", step, divided)

    def before(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """All is looked at after the step, in what the stage was given."""

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        """The graphs, their nodes and edges, features of few nodes, and all labels."""
        chunks = [context.chunk for _, context in given]
        self._check_targets(phase, step, batch)
        self._check_count(phase, step, batch, chunks)
        self.findings.looks["chunks"] += 1
        rule = random.Random(f"{self.experiment.seed}/{phase}/{step}")
        for m, ((x, context), wanted) in enumerate(
            zip(given, self._numbers(phase, batch), strict=True)
        ):
            chunk = context.chunk
            cause = self._other_graphs(chunk, wanted) or union_cause(
                self.graphs, chunk, wanted, self.hops, rule
            )
            if cause is not None:
                self.findings.add("chunks", phase, step, f"micro-batch {m}: {cause}")
            if not self.mesh.is_first:
                continue
            self.findings.looks["inputs"] += 1
            cause = self._features_cause(x, chunk.nodes.cpu().numpy(), rule)
            if cause is not None:
                self.findings.add("inputs", phase, step, cause)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """All labels, and of which graphs they are."""
        self._check_targets(phase, step, batch)
        for microbatch, wanted in zip(batch.microbatches, self._numbers(phase, batch), strict=True):
            cause = self._other_graphs(microbatch.context.chunk, wanted)
            if cause is not None:
                self.findings.add("chunks", phase, step, cause)

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """Of each micro-batch's graphs as read again, -100 for those of other splits."""
        return [self._labels(split, wanted) for wanted in self._numbers(phase, batch)]

    def labelled(self, phase: Phase, number: int) -> int:
        if phase == "test":
            return int(self.graphs.masks["test"].sum())
        return self._shares.together(number)

    def _labels(self, split: str, graphs: Ids) -> Ids:
        return np.where(self.graphs.masks[split][graphs], self.graphs.labels[graphs], IGNORED)

    def _numbers(self, phase: Phase, batch: Batch) -> list[Ids]:
        """Of each micro-batch; in training of a batch with other samples, which the order's check
        says, those that it says it has."""
        if phase == "test":
            return self._evaluated
        told = np.asarray(batch.sample_ids)
        usable = ((told >= 0) & (told < self._shares.samples)).all()
        return self._shares.split(told if usable else told[:0])

    def _check_targets(self, phase: Phase, step: int, batch: Batch) -> None:
        if not self.mesh.is_last:
            return
        self.findings.looks["targets"] += 1
        if phase == "test" and batch.labelled != self.labelled("test", 0):
            divided = f"{batch.labelled} graphs are told, test has {self.labelled('test', 0)}"
            self.findings.add("targets", phase, step, divided)
        for m, (microbatch, graphs) in enumerate(
            zip(batch.microbatches, self._numbers(phase, batch), strict=True)
        ):
            for split in _SPLITS[phase]:
                cause = self._labels_cause(microbatch.targets.get(split), split, graphs)
                if cause is not None:
                    self.findings.add("targets", phase, step, f"micro-batch {m}: {cause}")

    def _labels_cause(self, found: Tensor | None, split: str, graphs: Ids) -> str | None:
        if found is None:
            return f"there are no targets of the {split} split"
        told, wanted = found.detach().cpu().numpy(), self._labels(split, graphs)
        if np.array_equal(told, wanted):
            return None
        wrong = int((told != wanted).sum()) if told.shape == wanted.shape else len(told)
        said = f"{wrong} of {len(wanted)} labels of the {split} split are not the graphs'"
        for other in self.graphs.masks.keys() - {split}:
            if np.array_equal(told, self._labels(other, graphs)):
                return f"{said}: they are those of the {other} split"
        return said

    def _check_count(self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]) -> None:
        """Edges, which rates are made of."""
        had = sum(
            int(block.indptr[-1]) - block.rows_out
            for chunk in chunks
            for block in chunk.present_blocks
        )
        if batch.loading is not None and batch.loading.edges != had:
            cause = f"{batch.loading.edges} edges are told, its layers have {had}"
            self.findings.add("chunks", phase, step, cause)

    def _features_cause(self, x: Inputs, nodes: Ids, rule: random.Random) -> str | None:
        """How rows of the first stage's input differ from the nodes' features; none if not."""
        row = row_reader(x)
        for place in rule.sample(range(len(nodes)), min(ROWS, len(nodes))):
            wanted = self.graphs.features(int(nodes[place]))
            if not np.array_equal(row(place), wanted.astype(self.experiment.dtype)):
                return f"the features at row {place} are not those of node {nodes[place]}"
        return None

    @staticmethod
    def _other_graphs(chunk: GraphChunk, wanted: Ids) -> str | None:
        if chunk.graphs is None or not np.array_equal(chunk.graphs.cpu().numpy(), wanted):
            return "its graphs are not those of the mini-batch"
        return None

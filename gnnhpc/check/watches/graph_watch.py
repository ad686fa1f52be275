"""Holds a graph's features and labels, as stages are given them, against a second reading."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph import Ids, PlainGraph, Values, plain_graph
from gnnhpc.check.watches.chunk_edges import ChunkCounts, ChunkEdges, in_turn_cause
from gnnhpc.check.watches.data_watch import WatchedKind
from gnnhpc.check.watches.evaluated_nodes import EvaluatedNodes
from gnnhpc.check.watches.findings import Findings
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

ROWS = 8
"""Rows of each chunk whose features are read again in one step."""
_LABELLED: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


@dataclass
class GraphWatch:
    """Of one replica's chunks, on whichever of its stages this rank holds."""

    kind: ClassVar[WatchedKind] = "graph"
    experiment: Experiment
    mesh: Mesh
    root: Path | None
    findings: Findings
    hops: int
    """Layers that use neighbours, over all stages."""
    _graph: PlainGraph | None = None
    _edges: ChunkEdges = field(default_factory=ChunkEdges)
    _wanted: dict[tuple[int, str], tuple[Tensor, Ids]] = field(default_factory=dict)
    """Labels of chunks that have been asked for, with the nodes that they are of."""
    _evaluated: EvaluatedNodes = field(default_factory=EvaluatedNodes)

    @property
    def graph(self) -> PlainGraph:
        """Read when first asked for."""
        if self._graph is None:
            self._graph = plain_graph(self.experiment.data, self.root)
        return self._graph

    @property
    def chunks(self) -> Mapping[int, ChunkCounts]:
        return self._edges.counts

    @property
    def nodes_and_edges(self) -> tuple[int, int]:
        return self.graph.nodes, len(self.graph.source)

    @property
    def facts(self) -> Mapping[str, int]:
        return {}

    @property
    def evaluated(self) -> bytes | None:
        return self._evaluated.bits

    def check_order(self, step: int, batch: Batch) -> None:
        """A step has all chunks, which are compared when it is looked at."""

    def before(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """What is given is the same in every step, and nothing overwrites it."""

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        """Features of few rows, the chunks' nodes and edges, and all labels."""
        chunks = [context.graph for _, context in given if context.graph is not None]
        self._check_chunks(phase, step, batch, chunks)
        rule = random.Random(f"{self.experiment.seed}/{phase}/{step}")
        if self.mesh.is_first:
            self.findings.looks["inputs"] += 1
            for (x, _), chunk in zip(given, chunks, strict=True):
                cause = self.features_cause(x, chunk.nodes.cpu().numpy(), rule)
                if cause is not None:
                    self.findings.add("inputs", phase, step, cause)
        self.check_targets(phase, step, batch, chunks)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """Labels alone: the features of a graph are never written again."""
        chunks = [microbatch.context.chunk for microbatch in batch.microbatches]
        self.check_targets(phase, step, batch, chunks)

    def check_targets(
        self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]
    ) -> None:
        """All labels of the phase's splits, and what its loss is divided by."""
        if not self.mesh.has_loss:
            return
        self.findings.looks["targets"] += 1
        labelled = self.labelled(phase, step)
        if batch.labelled != labelled:
            divided = f"the loss is divided by {batch.labelled}, {phase} has {labelled} nodes"
            self.findings.add("targets", phase, step, divided)
        for microbatch, chunk in zip(batch.microbatches, chunks, strict=True):
            for split in _LABELLED[phase]:
                cause = self._labels(microbatch.targets.get(split), chunk, split)
                if cause is not None:
                    self.findings.add("targets", phase, step, cause)

    def labelled(self, phase: Phase, number: int) -> int:
        """Nodes of the phase's split."""
        return int(self.graph.masks[phase].sum())

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """The labels of each chunk's own nodes as read again, -100 for others."""
        chunks = [microbatch.context.chunk for microbatch in batch.microbatches]
        return [self._wanted_labels(chunk, split) for chunk in chunks]

    def _check_chunks(
        self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]
    ) -> None:
        self.findings.looks["chunks"] += 1
        own = [chunk.nodes[: chunk.own].cpu().numpy() for chunk in chunks]
        cause = self.own_cause(phase, batch, own) if own else None
        if cause is not None:
            self.findings.add("chunks", phase, step, cause)
        for number, chunk in enumerate(chunks):
            if chunk.in_turn is not None:
                cause = in_turn_cause(self.graph, chunk, random.Random(f"{phase}/{step}"))
                if cause is not None:
                    self.findings.add("chunks", phase, step, f"micro-batch {number}: {cause}")
                continue
            place = self.mesh.replica * self.experiment.microbatches + number
            cause = self._edges.cause(self.graph, chunk, self.experiment, place, self.hops)
            if cause is not None:
                self.findings.add("chunks", phase, step, f"chunk {place}: {cause}")

    def own_cause(self, phase: Phase, batch: Batch, own: list[Ids]) -> str | None:
        """What is wrong with the own nodes of a mini-batch's chunks; none if nothing is."""
        nodes = np.concatenate(own)
        if not np.array_equal(nodes, batch.sample_ids):
            return "the chunks' own nodes are not the samples of the mini-batch"
        return self._evaluated.cause(nodes, self.graph.nodes) if phase == "test" else None

    def features_cause(self, x: Inputs, nodes: Ids, rule: random.Random) -> str | None:
        """How rows of the first stage's input differ from the nodes' features; none if not."""
        row = row_reader(x)
        for place in rule.sample(range(len(nodes)), min(ROWS, len(nodes))):
            found, node = row(place), int(nodes[place])
            wanted = self.graph.features(node) if node >= 0 else np.zeros_like(found)
            wanted = wanted.astype(self.experiment.dtype).astype(np.float64)
            if not self._same(found, wanted):
                return self._explain(found, node, place, nodes)
        return None

    def _same(self, found: Values, wanted: Values) -> bool:
        """To the bit, unless features were divided by sums in single precision."""
        if not self.graph.divided:
            return np.array_equal(found, wanted)
        # A sum of n terms that are not negative is off by n roundings at most, the quotient by one.
        error = (np.count_nonzero(wanted) + 2) * np.finfo(np.float32).eps
        return found.shape == wanted.shape and bool(
            (np.abs(found - wanted) <= error * np.abs(wanted)).all()
        )

    def _explain(self, found: Values, node: int, place: int, nodes: Ids) -> str:
        if node < 0:
            return f"the padding at row {place} is not zero"
        told = f"the features at row {place} are not those of node {node}"
        wanted = self.graph.features(node).astype(self.experiment.dtype).astype(np.float64)
        if found.shape != wanted.shape:
            return f"{told}: {found.shape[0]} of {wanted.shape[0]}"
        for shift in (1, -1):
            other = int(nodes[(place + shift) % len(nodes)])
            if other >= 0 and self._same(found, self.graph.features(other)):
                return f"{told} but of the one beside it: they are shifted"
        ratio = float(found.sum() / wanted.sum()) if wanted.sum() else 0.0
        if ratio and np.allclose(found, ratio * wanted, rtol=1e-5):
            return f"{told}: they are scaled by {ratio:.4g}"
        return told

    def _wanted_labels(self, chunk: GraphChunk, split: str) -> Ids:
        nodes, labels = self._wanted.get((id(chunk.nodes), split), (None, None))
        # As long as a chunk's nodes are kept here, no other tensor has their id.
        if nodes is None or labels is None or nodes is not chunk.nodes:
            labels = self._read_labels(chunk, split)
            self._wanted[id(chunk.nodes), split] = chunk.nodes, labels
        return labels

    def _read_labels(self, chunk: GraphChunk, split: str) -> Ids:
        nodes = chunk.nodes[: chunk.own].cpu().numpy()
        labels = np.full(chunk.rows[-1], IGNORED, dtype=np.int64)
        labels[: chunk.own] = np.where(
            self.graph.masks[split][nodes], self.graph.labels[nodes], IGNORED
        )
        return labels

    def _labels(self, found: Tensor | None, chunk: GraphChunk, split: str) -> str | None:
        if found is None:
            return f"there are no targets of the {split} split"
        told, wanted = found.detach().cpu().numpy(), self._wanted_labels(chunk, split)
        if np.array_equal(told, wanted):
            return None
        wrong = int((told != wanted).sum()) if told.shape == wanted.shape else len(told)
        said = f"{wrong} targets of the {split} split differ from the graph's labels"
        return f"{said}: {self._other_labels(told, wanted, chunk, split)}"

    def _other_labels(self, told: Ids, wanted: Ids, chunk: GraphChunk, split: str) -> str:
        """What targets are that are not those of the split."""
        for other in self.graph.masks.keys() - {split}:
            if np.array_equal(told, self._wanted_labels(chunk, other)):
                return f"they are of the {other} split"
        for shift in (1, -1):
            if np.array_equal(told, np.roll(wanted, shift)):
                return f"they are shifted by {shift}"
        if np.array_equal(told == IGNORED, wanted == IGNORED):
            return "the right nodes have other classes"
        nodes = chunk.nodes[: chunk.own].cpu().numpy()
        more = (told != IGNORED) & (wanted == IGNORED)
        for other in self.graph.masks.keys() - {split}:
            if more.any() and self.graph.masks[other][nodes[more[: chunk.own]]].all():
                return f"{int(more.sum())} nodes of the {other} split are labelled too"
        if np.array_equal(told[: chunk.own], self.graph.labels[nodes]):
            return "nodes of every split are labelled"
        return "other nodes are labelled"


def row_reader(inputs: Inputs) -> Callable[[int], Values]:
    """Reads rows of the first stage's input, float64 [F]."""
    if isinstance(inputs, Tensor):
        dense = inputs.detach()
        return lambda place: np.asarray(dense[place].cpu().double().numpy())
    if isinstance(inputs, IndexedRows):
        rows, nodes = inputs.features, inputs.nodes
        return lambda place: np.asarray(rows[nodes[place]].cpu().double().numpy())
    indptr, columns = inputs.indptr.cpu().numpy(), inputs.columns.cpu().numpy()
    values, width = inputs.values.detach().cpu().numpy(), inputs.width

    def row(place: int) -> Values:
        found = np.zeros(width)
        part = slice(indptr[place], indptr[place + 1])
        np.add.at(found, columns[part], values[part])
        return found

    return row

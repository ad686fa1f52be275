"""Holds mini-batches of many small graphs against a second reading, graph by graph."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph_set import PlainGraphSet, plain_graph_set
from gnnhpc.check.plain.shares import PlainShares
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.data_watch import Ids, WatchedKind
from gnnhpc.check.watches.drawn_watch import DrawnWatch
from gnnhpc.check.watches.graph_watch import ROWS, row_reader
from gnnhpc.check.watches.union_edges import union_cause
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.records.schema import Phase

_SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


@dataclass
class GraphSetWatch(DrawnWatch):
    """Of one replica's mini-batches, on whichever of its stages this rank holds."""

    kind: ClassVar[WatchedKind] = "graphs"
    samples: ClassVar[str] = "graphs"
    terms: ClassVar[str] = "graphs"

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

    @property
    def facts(self) -> Mapping[str, int]:
        nodes, edges = self.nodes_and_edges
        counts = {f"{split}_graphs": int(mask.sum()) for split, mask in self.graphs.masks.items()}
        counts |= {"graphs": len(self.graphs.labels), "nodes": nodes, "edges": edges}
        return {**counts, **super().facts}

    @property
    def evaluated(self) -> bytes | None:
        return None

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

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """Of each micro-batch's graphs as read again, -100 for those of other splits."""
        return [self._labels(split, asked) for asked in self._asked(phase, number, batch)]

    def labelled(self, phase: Phase, number: int) -> int:
        if phase == "test":
            return int(self.graphs.masks["test"].sum())
        return self._shares.together(number)

    def _asked(self, phase: Phase, step: int, batch: Batch) -> Sequence[Ids]:
        return self._evaluated if phase == "test" else self._samples(batch)

    def _other(self, chunk: GraphChunk, asked: Ids) -> str | None:
        if chunk.graphs is None or not np.array_equal(chunk.graphs.cpu().numpy(), asked):
            return "its graphs are not those of the mini-batch"
        return None

    def _chunk_cause(
        self, phase: Phase, step: int, chunk: GraphChunk, asked: Ids, rule: random.Random
    ) -> str | None:
        return union_cause(self.graphs, chunk, asked, self.hops, rule)

    def _input_cause(self, x: Inputs, nodes: Ids, rule: random.Random) -> str | None:
        row = row_reader(x)
        for place in rule.sample(range(len(nodes)), min(ROWS, len(nodes))):
            wanted = self.graphs.features(int(nodes[place]))
            if not np.array_equal(row(place), wanted.astype(self.experiment.dtype)):
                return f"the features at row {place} are not those of node {nodes[place]}"
        return None

    def _labels(self, split: str, graphs: Ids) -> Ids:
        return np.where(self.graphs.masks[split][graphs], self.graphs.labels[graphs], IGNORED)

    def _check_targets(self, phase: Phase, step: int, batch: Batch) -> None:
        if not self.mesh.has_loss:
            return
        self.findings.looks["targets"] += 1
        if phase == "test" and batch.labelled != self.labelled("test", 0):
            divided = f"{batch.labelled} graphs are told, test has {self.labelled('test', 0)}"
            self.findings.add("targets", phase, step, divided)
        all_asked = self._asked(phase, step, batch)
        for m, (microbatch, graphs) in enumerate(zip(batch.microbatches, all_asked, strict=True)):
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

"""Holds sampled mini-batches against a second reading of the graph and a second drawing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.check.plain.shares import PlainShares, evaluated_nodes
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.data_watch import WatchedKind
from gnnhpc.check.watches.drawn_watch import DrawnWatch
from gnnhpc.check.watches.graph_watch import GraphWatch
from gnnhpc.check.watches.sampled_edges import sampled_cause
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


@dataclass
class SampledWatch(DrawnWatch):
    """Of one replica's mini-batches; what it evaluates is a whole graph in chunks, unless that is
    sampled too."""

    kind: ClassVar[WatchedKind] = "sampled"
    samples: ClassVar[str] = "nodes"
    terms: ClassVar[str] = "nodes"
    whole: GraphWatch = field(init=False)

    def __post_init__(self) -> None:
        self.whole = GraphWatch(
            self.experiment.whole_graph, self.mesh, self.root, self.findings, self.hops
        )

    @property
    def chunks(self) -> Mapping[int, ChunkCounts]:
        return self.whole.chunks

    @property
    def nodes_and_edges(self) -> tuple[int, int]:
        return self.whole.nodes_and_edges

    @property
    def evaluated(self) -> bytes | None:
        return self.whole.evaluated

    @cached_property
    def _shares(self) -> PlainShares:
        train = np.flatnonzero(self.whole.graph.masks["train"])
        return PlainShares.of(self.experiment, train, self.mesh.replica)

    @cached_property
    def _trained(self) -> PlainGraph:
        """What mini-batches may be drawn from."""
        graph, sampling = self.whole.graph, self.experiment.sampling
        inductive = sampling is not None and sampling.inductive
        return graph.among(graph.masks["train"]) if inductive else graph

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        """The edges of an evaluation that is sampled are drawn again; else it has all of them."""
        if phase == "test" and not self.experiment.evaluates_sampled:
            self.whole.after(phase, step, number, batch, given)
        else:
            super().after(phase, step, number, batch, given)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        if phase == "test" and not self.experiment.evaluates_sampled:
            self.whole.check_cheaply(phase, step, number, batch)
        else:
            super().check_cheaply(phase, step, number, batch)

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        if phase == "test":
            return self.whole.labels(phase, split, number, batch)
        return self._wanted(number, batch)

    def labelled(self, phase: Phase, number: int) -> int:
        if phase == "test":
            return self.whole.labelled(phase, number)
        return self._shares.together(number)

    def _asked(self, phase: Phase, step: int, batch: Batch) -> Sequence[Ids]:
        if phase == "train":
            return self._nodes(step, batch)
        masks = self.whole.graph.masks
        return evaluated_nodes(self.experiment, masks["val"], masks["test"], self.mesh.replica)

    def _other(self, chunk: GraphChunk, asked: Ids) -> str | None:
        own = chunk.nodes[: chunk.own].cpu().numpy()
        if not np.array_equal(own, asked):
            return "its own nodes are not those of the mini-batch"
        return None

    def _chunk_cause(
        self, phase: Phase, step: int, chunk: GraphChunk, asked: Ids, rule: random.Random
    ) -> str | None:
        if phase == "test":
            graph, step = self.whole.graph, EVALUATED_STEP
        else:
            graph = self._drawn_from(step)
        return sampled_cause(graph, chunk, self.experiment, step, rule)

    def _input_cause(self, x: Inputs, nodes: Ids, rule: random.Random) -> str | None:
        return self.whole.features_cause(x, nodes, rule)

    def _counted(self, chunk: GraphChunk) -> Iterable[Block]:
        """Drawn once, the first layer has all of them."""
        sampling = self.experiment.sampling
        assert sampling is not None
        return chunk.present_blocks[slice(1) if sampling.semantics == "once" else slice(None)]

    def _drawn_from(self, step: int) -> PlainGraph:
        """The graph whose edges are drawn in a step."""
        return self._trained

    def _nodes(self, step: int, batch: Batch) -> list[Ids]:
        """The nodes whose outputs each micro-batch needs, ascending."""
        return self._samples(batch)

    def _wanted(self, step: int, batch: Batch) -> list[Ids]:
        """The targets of each micro-batch; rows after its own nodes have none."""
        wanted = []
        for microbatch, nodes in zip(batch.microbatches, self._nodes(step, batch), strict=True):
            rows = max(microbatch.context.chunk.rows[-1], len(nodes))
            targets = np.full(rows, IGNORED)
            targets[: len(nodes)] = self.whole.graph.labels[nodes]
            wanted.append(targets)
        return wanted

    def _check_targets(self, phase: Phase, step: int, batch: Batch) -> None:
        if phase == "test":
            chunks = [microbatch.context.chunk for microbatch in batch.microbatches]
            self.whole.check_targets(phase, step, batch, chunks)
            return
        if not self.mesh.has_loss:
            return
        self.findings.looks["targets"] += 1
        all_wanted = self._wanted(step, batch)
        for m, (microbatch, wanted) in enumerate(zip(batch.microbatches, all_wanted, strict=True)):
            told = microbatch.targets["train"].detach().cpu().numpy()
            if not np.array_equal(told, wanted):
                cause = self._other_targets(told, wanted, step, m, batch)
                self.findings.add("targets", "train", step, cause)

    def _other_targets(self, told: Ids, wanted: Ids, step: int, m: int, batch: Batch) -> str:
        wrong = int((told != wanted).sum()) if told.shape == wanted.shape else len(told)
        return f"{wrong} of {len(wanted)} labels of micro-batch {m} are not its nodes'"

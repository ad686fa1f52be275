"""Holds sampled mini-batches against a second reading of the graph and a second drawing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.graph import Ids, PlainGraph
from gnnhpc.check.plain.shares import PlainShares, evaluated_nodes
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.data_watch import WatchedKind
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.graph_watch import GraphWatch
from gnnhpc.check.watches.sampled_edges import sampled_cause
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.context import Context
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Phase
from gnnhpc.spec.experiment import Experiment
from gnnhpc.spec.sampling import EVALUATED_STEP


@dataclass
class SampledWatch:
    """Of one replica's mini-batches; what it evaluates is a whole graph in chunks."""

    kind: ClassVar[WatchedKind] = "sampled"
    terms: ClassVar[str] = "nodes"
    """Of the loss, in words."""
    experiment: Experiment
    mesh: Mesh
    root: Path | None
    findings: Findings
    hops: int
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

    def check_order(self, step: int, batch: Batch) -> None:
        """In every step: its nodes, and how many the loss is divided by."""
        self.findings.looks["order"] += 1
        told = np.asarray(batch.sample_ids)
        if not np.array_equal(told, self._shares.ids(step)):
            self.findings.add("order", "train", step, self._shares.explain(step, told))
        together = self.labelled("train", step)
        if batch.labelled != together:
            divided = (
                f"the loss is divided by {batch.labelled}, the step has {together} {self.terms}"
            )
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
        if phase == "test":
            self._after_evaluation(step, number, batch, given)
            return
        self._check_targets(step, batch)
        self._check_count(step, batch, [context.chunk for _, context in given])
        self.findings.looks["chunks"] += 1
        rule = random.Random(f"{self.experiment.seed}/{phase}/{step}")
        graph, asked = self._drawn_from(step), self._nodes(step, batch)
        for m, ((x, context), seeds) in enumerate(zip(given, asked, strict=True)):
            chunk = context.chunk
            cause = self._other_nodes(chunk, seeds) or sampled_cause(
                graph, chunk, self.experiment, step, rule
            )
            if cause is not None:
                self.findings.add("chunks", phase, step, f"micro-batch {m}: {cause}")
            if not self.mesh.is_first:
                continue
            self.findings.looks["inputs"] += 1
            cause = self.whole.features_cause(x, chunk.nodes.cpu().numpy(), rule)
            if cause is not None:
                self.findings.add("inputs", phase, step, cause)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """All labels, and of which nodes they are."""
        if phase == "test":
            self.whole.check_cheaply(phase, step, number, batch)
            if self.experiment.evaluates_sampled:
                self._check_evaluated(step, batch)
            return
        self._check_targets(step, batch)
        for microbatch, seeds in zip(batch.microbatches, self._nodes(step, batch), strict=True):
            cause = self._other_nodes(microbatch.context.chunk, seeds)
            if cause is not None:
                self.findings.add("chunks", phase, step, cause)

    def _after_evaluation(
        self, step: int, number: int, batch: Batch, given: list[tuple[Inputs, Context]]
    ) -> None:
        """The edges of an evaluation that is sampled are drawn again; else it has all of them."""
        if not self.experiment.evaluates_sampled:
            self.whole.after("test", step, number, batch, given)
            return
        chunks = [context.chunk for _, context in given]
        self.whole.check_targets("test", step, batch, chunks)
        self._check_evaluated(step, batch)
        self.findings.looks["chunks"] += 1
        rule = random.Random(f"{self.experiment.seed}/test/{step}")
        for x, context in given:
            chunk = context.chunk
            drawn = (self.whole.graph, chunk, self.experiment, EVALUATED_STEP, rule)
            cause = sampled_cause(*drawn)
            if cause is not None:
                self.findings.add("chunks", "test", step, cause)
            if self.mesh.is_first:
                self.findings.looks["inputs"] += 1
                cause = self.whole.features_cause(x, chunk.nodes.cpu().numpy(), rule)
                if cause is not None:
                    self.findings.add("inputs", "test", step, cause)

    def _check_evaluated(self, step: int, batch: Batch) -> None:
        """Which nodes an evaluation that is sampled is of."""
        masks = self.whole.graph.masks
        wanted = evaluated_nodes(self.experiment, masks["val"], masks["test"], self.mesh.replica)
        for microbatch, nodes in zip(batch.microbatches, wanted, strict=True):
            if self._other_nodes(microbatch.context.chunk, nodes) is not None:
                cause = "its own nodes are not this replica's of those to validate and to test"
                self.findings.add("chunks", "test", step, cause)

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        if phase == "test":
            return self.whole.labels(phase, split, number, batch)
        return self._wanted(number, batch)

    def labelled(self, phase: Phase, number: int) -> int:
        if phase == "test":
            return self.whole.labelled(phase, number)
        return self._shares.together(number)

    def _drawn_from(self, step: int) -> PlainGraph:
        """The graph whose edges are drawn in a step."""
        return self._trained

    def _wanted(self, step: int, batch: Batch) -> list[Ids]:
        """The targets of each micro-batch; rows after its own nodes have none."""
        wanted = []
        for microbatch, nodes in zip(batch.microbatches, self._nodes(step, batch), strict=True):
            rows = max(microbatch.context.chunk.rows[-1], len(nodes))
            targets = np.full(rows, IGNORED)
            targets[: len(nodes)] = self.whole.graph.labels[nodes]
            wanted.append(targets)
        return wanted

    def _nodes(self, step: int, batch: Batch) -> list[Ids]:
        """The nodes whose outputs each micro-batch needs, ascending."""
        return self._samples(batch)

    def _samples(self, batch: Batch) -> list[Ids]:
        """Of each micro-batch; of a batch with other samples, which the order's check says, those
        that it says it has."""
        told = np.asarray(batch.sample_ids)
        usable = ((told >= 0) & (told < self._shares.samples)).all()
        return self._shares.split(told if usable else told[:0])

    def _check_targets(self, step: int, batch: Batch) -> None:
        if not self.mesh.is_last:
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

    def _check_count(self, step: int, batch: Batch, chunks: list[GraphChunk]) -> None:
        """Sampled edges, which rates of sampling are made of."""
        sampling = self.experiment.sampling
        assert sampling is not None
        # Drawn once, the first layer has all of them.
        layers = slice(1) if sampling.semantics == "once" else slice(None)
        drawn = sum(
            int(block.indptr[-1]) - block.rows_out
            for chunk in chunks
            for block in chunk.present_blocks[layers]
        )
        if batch.loading is not None and batch.loading.edges != drawn:
            cause = f"{batch.loading.edges} sampled edges are told, its layers have {drawn}"
            self.findings.add("chunks", "train", step, cause)

    @staticmethod
    def _other_nodes(chunk: GraphChunk, seeds: Ids) -> str | None:
        own = chunk.nodes[: chunk.own].cpu().numpy()
        if not np.array_equal(own, seeds):
            return "its own nodes are not those of the mini-batch"
        return None

"""What watches of mini-batches that are made within their step share: of nodes, links or graphs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.order import Ids
from gnnhpc.check.plain.shares import PlainShares
from gnnhpc.check.watches.findings import Findings
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


@dataclass
class DrawnWatch:
    """Of one replica; a watch of one kind of samples says what its mini-batches must hold."""

    samples: ClassVar[str]
    """What an epoch is all of, in words."""
    terms: ClassVar[str]
    """Of the loss."""
    experiment: Experiment
    mesh: Mesh
    root: Path | None
    findings: Findings
    hops: int
    """Layers that use neighbours, over all stages."""

    @cached_property
    def _shares(self) -> PlainShares:
        raise NotImplementedError

    @property
    def facts(self) -> Mapping[str, int]:
        shares = self._shares
        return {
            f"train_{self.samples}": shares.samples,
            "steps_per_epoch": shares.steps_per_epoch,
        }

    def labelled(self, phase: Phase, number: int) -> int:
        """Terms of the loss over all replicas."""
        raise NotImplementedError

    def _asked(self, phase: Phase, step: int, batch: Batch) -> Sequence[Ids]:
        """What each micro-batch must be of: nodes or graphs, ascending."""
        raise NotImplementedError

    def _other(self, chunk: GraphChunk, asked: Ids) -> str | None:
        """Whether a micro-batch is of others."""
        raise NotImplementedError

    def _chunk_cause(
        self, phase: Phase, step: int, chunk: GraphChunk, asked: Ids, rule: random.Random
    ) -> str | None:
        """What is wrong with the rows and edges of one micro-batch; none if nothing is."""
        raise NotImplementedError

    def _input_cause(self, x: Inputs, nodes: Ids, rule: random.Random) -> str | None:
        """How rows of the first stage's input differ from the nodes' features; none if not."""
        raise NotImplementedError

    def _check_targets(self, phase: Phase, step: int, batch: Batch) -> None:
        raise NotImplementedError

    def _counted(self, chunk: GraphChunk) -> Iterable[Block]:
        """The layers whose edges are told."""
        return chunk.present_blocks

    def check_order(self, step: int, batch: Batch) -> None:
        """In every step: its samples, and by how many terms the loss is divided."""
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
        """All targets, the rows and edges of each micro-batch, and features of few nodes."""
        self._check_targets(phase, step, batch)
        self._check_count(phase, step, batch, [context.chunk for _, context in given])
        self.findings.looks["chunks"] += 1
        rule = random.Random(f"{self.experiment.seed}/{phase}/{step}")
        all_asked = self._asked(phase, step, batch)
        # Of training, the order's check says it in every step.
        if phase == "test" and not np.array_equal(np.concatenate(all_asked), batch.sample_ids):
            apart = "its samples are not this replica's of those to validate and to test"
            self.findings.add("chunks", phase, step, apart)
        for m, ((x, context), asked) in enumerate(zip(given, all_asked, strict=True)):
            chunk = context.chunk
            cause = self._other(chunk, asked)
            cause = cause or self._chunk_cause(phase, step, chunk, asked, rule)
            if cause is not None:
                self.findings.add("chunks", phase, step, f"micro-batch {m}: {cause}")
            if not self.mesh.is_first:
                continue
            self.findings.looks["inputs"] += 1
            cause = self._input_cause(x, chunk.nodes.cpu().numpy(), rule)
            if cause is not None:
                self.findings.add("inputs", phase, step, cause)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """All targets, and what each micro-batch is of."""
        self._check_targets(phase, step, batch)
        all_asked = self._asked(phase, step, batch)
        for microbatch, asked in zip(batch.microbatches, all_asked, strict=True):
            cause = self._other(microbatch.context.chunk, asked)
            if cause is not None:
                self.findings.add("chunks", phase, step, cause)

    def _samples(self, batch: Batch) -> list[Ids]:
        """Of each micro-batch in training; of a batch with other samples, which the order's check
        says, those that it says it has."""
        told = np.asarray(batch.sample_ids)
        usable = ((told >= 0) & (told < self._shares.samples)).all()
        return self._shares.split(told if usable else told[:0])

    def _check_count(self, phase: Phase, step: int, batch: Batch, chunks: list[GraphChunk]) -> None:
        """Edges, which rates are made of."""
        had = sum(
            int(block.indptr[-1]) - block.rows_out
            for chunk in chunks
            for block in self._counted(chunk)
        )
        if batch.loading is not None and batch.loading.edges != had:
            cause = f"{batch.loading.edges} edges are told, its layers have {had}"
            self.findings.add("chunks", phase, step, cause)

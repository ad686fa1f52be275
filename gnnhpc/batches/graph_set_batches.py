"""Batches of many small graphs: in each step some of them as one graph of which they are the parts.

Replicas share each mini-batch by one order that all compute. It is made within its step: that takes
less than waiting for Python's lock after a thread that makes it in advance. An evaluation is of all
graphs to validate and to test, in one mini-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, Loading, MicroBatch, SampleIds
from gnnhpc.batches.chunk_batches import SPLITS
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.draws import edges_of, features_of
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph_sets import load_graph_set
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.disjoint_union import DisjointUnions
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


class GraphSetBatches:
    """Raises InputError for graphs that are missing or damaged, and for too few to train on.

    `graphs` are given where they are loaded already.
    """

    fixed_rows = False
    drawn = True

    def __init__(self, plan: BatchPlan, graphs: GraphSet | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        assert experiment.batch_size is not None
        self.plan = plan
        self.graphs = graphs or load_graph_set(experiment.data, plan.root)
        self.shares = Shares(
            self.graphs.numbers("train"),
            experiment.batch_size,
            experiment.microbatches,
            mesh.layout.replicas,
            mesh.replica,
            experiment.seed,
        )
        self.samples, self.total_samples = experiment.batch_size, len(self.shares.train)
        if self.samples * mesh.layout.replicas > self.total_samples:
            found = f"{self.samples} x {mesh.layout.replicas} replicas"
            allowed = f"at most the {self.total_samples} graphs to train on"
            raise InputError(f"data {experiment.data.name}", "batch_size", found, allowed)
        self.steps_per_epoch = self.shares.steps_per_epoch
        self._unions = DisjointUnions(self.graphs, hops(plan.outlines))
        self._evaluated = self._evaluation() if experiment.test_steps else None

    def _evaluation(self) -> Batch:
        """All graphs to validate and to test, in parts of neighbouring ones."""
        layout, microbatches = self.plan.mesh.layout, self.plan.experiment.microbatches
        numbers = self.graphs.numbers(*SPLITS["test"])
        parts = numbers.tensor_split(layout.replicas * microbatches)
        first = self.plan.mesh.replica * microbatches
        mine = parts[first : first + microbatches]
        return self._batch("test", 0, 0, mine, torch.cat(mine).numpy(), self._labelled("test"))

    def _labelled(self, split: str) -> int:
        return int(self.graphs.masks[split].sum())

    def shape_after(self, index: int) -> tuple[int, ...]:
        """Its rows differ from step to step."""
        layer = self.plan.outlines[max(index, 0)]
        return (0, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> MicroBatch:
        first = self._train_batch(0).microbatches[0]
        # Layers of all stages are timed with it, the last one's too.
        return dataclasses.replace(first, targets=first.context.chunk.targets)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        make = self._train_batch if phase == "train" else self._test_batch
        yield (make(step) for step in range(start, stop))

    def _train_batch(self, step: int) -> Batch:
        share = self.shares.of_step(step)
        return self._batch("train", step, share.epoch, share.seeds, share.places, share.together)

    def _test_batch(self, step: int) -> Batch:
        """The same in every step, but for the step's number; made at set-up, so in no step."""
        assert self._evaluated is not None
        numbered = tuple(
            dataclasses.replace(each, context=dataclasses.replace(each.context, step=step))
            for each in self._evaluated.microbatches
        )
        return dataclasses.replace(self._evaluated, microbatches=numbered, epoch=step, loading=None)

    def _batch(
        self,
        phase: Phase,
        step: int,
        epoch: int,
        parts: Sequence[Tensor],
        sample_ids: SampleIds,
        labelled: int,
    ) -> Batch:
        """Of the graphs of each micro-batch, int64 [n] ascending."""
        began_s = time.perf_counter()
        chunks = tuple(self._unions.of(part, SPLITS[phase]) for part in parts)
        united_s = time.perf_counter()
        inputs: Sequence[Inputs | None] = [None] * len(chunks)
        if self.plan.mesh.is_first:
            inputs = [features_of(self.graphs, chunk, self.plan) for chunk in chunks]
        gathered_s = time.perf_counter()
        return Batch(
            microbatches=tuple(
                self._microbatch(m, step, chunk, x)
                for m, (chunk, x) in enumerate(zip(chunks, inputs, strict=True))
            ),
            labelled=labelled,
            samples=len(sample_ids),
            epoch=epoch,
            sample_ids=sample_ids,
            checksum=_checksum(chunks),
            loading=Loading(united_s - began_s, gathered_s - united_s, edges_of(chunks)),
        )

    def _microbatch(self, m: int, step: int, chunk: GraphChunk, x: Inputs | None) -> MicroBatch:
        mesh = self.plan.mesh
        there = chunk if mesh.device.type == "cpu" else chunk.to(mesh.device)
        return MicroBatch(
            None if x is None else x.to(mesh.device),
            there.targets if mesh.has_loss else {},
            Context(m, step, self.plan.experiment.seed, there),
        )

    def graph_facts(self) -> dict[str, Any]:
        return {
            "mode": "graphs",
            "graphs": len(self.graphs),
            **{f"{split}_graphs": self._labelled(split) for split in self.graphs.masks},
            "nodes": self.graphs.nodes,
            "edges": self.graphs.edges.shape[1],
            "steps_per_epoch": self.steps_per_epoch,
        }


def _checksum(chunks: Sequence[GraphChunk]) -> int:
    """CRC-32 of the graphs of these chunks and of their labels."""
    found = 0
    for chunk in chunks:
        assert chunk.graphs is not None
        for tensor in (chunk.graphs, *chunk.targets.values()):
            found = zlib.crc32(tensor.numpy().tobytes(), found)
    return found

"""Mini-batches of many small graphs: in each step some of them, united into one graph.

Replicas share each mini-batch by one order that all compute. A mini-batch is made within its step:
that takes less time than a thread's wait for Python's lock. An evaluation has all graphs to
validate and to test in one mini-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, Batch, BatchPlan, Inputs, Loading, MicroBatch, SampleIds
from gnnhpc.batches.chunk_batches import crc32, input_rows
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph import load_graph_set
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph_set import DisjointUnions, GraphSet
from gnnhpc.records.schema import Phase


class GraphSetBatches:
    """Raises InputError for graphs that are missing or damaged, and for too few to train on.

    `graphs` are given where they are loaded already.
    """

    fixed_rows = False
    made_in_step = True

    def __init__(self, plan: BatchPlan, graphs: GraphSet | None = None) -> None:
        experiment = plan.experiment
        self.plan = plan
        self.graphs = graphs or load_graph_set(experiment.data, plan.root)
        self.shares = Shares.of(self.graphs.numbers("train"), plan)
        self.samples, self.total_samples = self.shares.batch_size, len(self.shares.train)
        if self.samples * self.shares.replicas > self.total_samples:
            found = f"{self.samples} x {self.shares.replicas} replicas"
            allowed = f"at most the {self.total_samples} graphs to train on"
            raise InputError(f"data {experiment.data.name}", "batch_size", found, allowed)
        self.steps_per_epoch = self.shares.steps_per_epoch
        self._unions = DisjointUnions(self.graphs, hops(plan.layer_specs))
        self._evaluated = self._evaluation() if experiment.test_steps else None

    def _evaluation(self) -> Batch:
        """All graphs to validate and to test, in parts of consecutive ones."""
        layout, microbatches = self.plan.mesh.layout, self.plan.experiment.microbatches
        numbers = self.graphs.numbers(*SPLITS["test"])
        parts = numbers.tensor_split(layout.replicas * microbatches)
        first = self.plan.mesh.replica * microbatches
        mine = parts[first : first + microbatches]
        return self._batch("test", 0, 0, mine, torch.cat(mine).numpy(), self._count("test"))

    def _count(self, split: str) -> int:
        return int(self.graphs.masks[split].sum())

    def shape_after(self, index: int) -> tuple[int, ...]:
        """The rows are 0: they differ from step to step."""
        layer = self.plan.layer_specs[max(index, 0)]
        return (0, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> MicroBatch:
        first = self._train_batch(0).microbatches[0]
        # The layers of all stages are timed with it, the last one's too.
        return dataclasses.replace(first, targets=first.context.chunk.targets)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        make = self._train_batch if phase == "train" else self._test_batch
        yield (make(step) for step in range(start, stop))

    def _train_batch(self, step: int) -> Batch:
        share = self.shares.of_step(step)
        return self._batch("train", step, share.epoch, share.seeds, share.places, share.together)

    def _test_batch(self, step: int) -> Batch:
        """The mini-batch that set-up made, with the number of this step."""
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
        valid_targets: int,
    ) -> Batch:
        """Unite the graphs of each micro-batch, int64 [n] ascending."""
        began_s = time.perf_counter()
        chunks = tuple(self._unions.of(part, SPLITS[phase]) for part in parts)
        united_s = time.perf_counter()
        inputs: Sequence[Inputs | None] = [None] * len(chunks)
        if self.plan.mesh.is_first:
            inputs = [input_rows(self.graphs, chunk, self.plan) for chunk in chunks]
        gathered_s = time.perf_counter()
        edges = sum(block.neighbour_count for chunk in chunks for block in chunk.blocks)
        checked = [
            [part, *chunk.targets.values()] for part, chunk in zip(parts, chunks, strict=True)
        ]
        return Batch(
            microbatches=tuple(
                self._microbatch(m, step, chunk, x)
                for m, (chunk, x) in enumerate(zip(chunks, inputs, strict=True))
            ),
            valid_targets=valid_targets,
            samples=len(sample_ids),
            epoch=epoch,
            sample_ids=sample_ids,
            checksum=crc32([tensor for tensors in checked for tensor in tensors]),
            loading=Loading(united_s - began_s, gathered_s - united_s, edges),
        )

    def _microbatch(self, m: int, step: int, chunk: GraphChunk, x: Inputs | None) -> MicroBatch:
        mesh = self.plan.mesh
        moved = chunk if mesh.device.type == "cpu" else chunk.to(mesh.device)
        return MicroBatch(
            None if x is None else x.to(mesh.device),
            moved.targets if mesh.has_loss else {},
            self.plan.context(m, step, moved),
        )

    def graph_metadata(self) -> dict[str, Any]:
        return {
            "mode": "graphs",
            "graphs": len(self.graphs),
            **{f"{split}_graphs": self._count(split) for split in self.graphs.masks},
            "nodes": self.graphs.nodes,
            "edges": self.graphs.edges.shape[1],
            "steps_per_epoch": self.steps_per_epoch,
        }

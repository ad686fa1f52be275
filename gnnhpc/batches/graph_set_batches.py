"""Mini-batches of many small graphs: in each step some of them, united into one graph.

Replicas share each mini-batch by one order that all compute. A mini-batch is made within its step:
that takes less time than a thread's wait for Python's lock. An evaluation has all graphs to
validate and to test in one mini-batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, Batch, BatchPlan, Inputs, Loading
from gnnhpc.batches.graph_batch import (
    RepeatedBatch,
    SharedBatches,
    crc32,
    input_rows,
    label_counts,
    microbatches_of,
)
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph import load_graph_set
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph_set import DisjointUnions, GraphSet


class GraphSetBatches(SharedBatches):
    """Raises InputError for graphs that are missing or damaged, and for too few to train on.

    `graphs` are given where they are loaded already.
    """

    def __init__(self, plan: BatchPlan, graphs: GraphSet | None = None) -> None:
        self.graphs = graphs or load_graph_set(plan.experiment.data, plan.root)
        super().__init__(plan, self.graphs.numbers("train"), "graphs")
        self._unions = DisjointUnions(self.graphs, hops(plan.layer_specs))
        if plan.experiment.test_steps:
            # All graphs to validate and to test, in parts of consecutive ones.
            numbers = self.graphs.numbers(*SPLITS["test"])
            mine = numbers.tensor_split(plan.experiment.total_chunks)[plan.replica_slice]
            chunks = [self._unions.of(part, SPLITS["test"]) for part in mine]
            ids, checksum = torch.cat(mine).numpy(), _checksum(mine, chunks)
            self.evaluation = RepeatedBatch(plan, self.graphs, chunks, input_rows, ids, checksum)

    @contextlib.contextmanager
    def training(self, steps: range) -> Iterator[Iterator[Batch]]:
        yield map(self._train_batch, steps)

    def _train_batch(self, step: int) -> Batch:
        share, plan, began_s = self.shares.of_step(step), self.plan, time.perf_counter()
        chunks = [self._unions.of(part, SPLITS["train"]) for part in share.seeds]
        united_s = time.perf_counter()
        inputs: list[Inputs | None] = [None] * len(chunks)
        if plan.mesh.is_first:
            inputs = [input_rows(self.graphs, chunk, plan) for chunk in chunks]
        gathered_s = time.perf_counter()
        edges = sum(block.neighbour_count for chunk in chunks for block in chunk.blocks)
        device = plan.mesh.device
        on_device = chunks if device.type == "cpu" else [chunk.to(device) for chunk in chunks]
        inputs = [None if x is None else x.to(device) for x in inputs]
        return Batch(
            microbatches_of(plan, "train", step, on_device, inputs),
            valid_targets=share.together,
            samples=len(share.places),
            epoch=share.epoch,
            sample_ids=share.places,
            checksum=_checksum(share.seeds, chunks),
            loading=Loading(united_s - began_s, gathered_s - united_s, edges),
        )

    def graph_metadata(self) -> dict[str, Any]:
        return {
            "mode": "graphs",
            "graphs": len(self.graphs),
            **{f"{split}_graphs": count for split, count in label_counts(self.graphs).items()},
            "nodes": self.graphs.nodes,
            "edges": self.graphs.edges.shape[1],
            "steps_per_epoch": self.steps_per_epoch,
        }


def _checksum(parts: Sequence[Tensor], chunks: Sequence[GraphChunk]) -> int:
    """The checksum of the numbers of graphs and of their labels."""
    return crc32(
        tensor
        for part, chunk in zip(parts, chunks, strict=True)
        for tensor in (part, *chunk.targets.values())
    )

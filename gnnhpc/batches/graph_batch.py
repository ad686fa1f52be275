"""Mini-batches of chunks of graphs: their features, targets and checksum."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from gnnhpc.batches.batch import (
    SPLITS,
    Batch,
    Batches,
    BatchPlan,
    Inputs,
    MicroBatch,
    SampleIds,
)
from gnnhpc.batches.shuffle import Shares
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, computed_dtype, feature_rows
from gnnhpc.records.schema import Phase


def microbatches_of(
    plan: BatchPlan,
    phase: Phase,
    step: int,
    chunks: Sequence[GraphChunk],
    inputs: Sequence[Inputs | None],
) -> tuple[MicroBatch, ...]:
    """The micro-batches of chunks and inputs, which must be on the device."""
    splits = SPLITS[phase] if plan.mesh.has_loss else ()
    return tuple(
        MicroBatch(
            x, {split: chunk.targets[split] for split in splits}, plan.context(m, step, chunk)
        )
        for m, (x, chunk) in enumerate(zip(inputs, chunks, strict=True))
    )


_DENSE_FROM = 20
"""On a GPU rows are dense that have one in so many values or more."""
RowsOf = Callable[[Graph | GraphSet, GraphChunk, BatchPlan], Inputs]
"""Finds the features of a chunk's rows: `copied_rows` or `input_rows`."""


class RepeatedBatch:
    """The same chunks in every step, moved to the device once."""

    def __init__(
        self,
        plan: BatchPlan,
        graph: Graph | GraphSet,
        chunks: Sequence[GraphChunk],
        rows: RowsOf,
        sample_ids: SampleIds,
        checksum: int,
        valid_targets: Mapping[str, int] | None = None,
    ) -> None:
        """`Batch` has the other fields; `valid_targets` are by phase, by default the labels."""
        self.plan, mesh = plan, plan.mesh
        self.chunks = [
            (chunk if mesh.has_loss else replace(chunk, targets={})).to(mesh.device)
            for chunk in chunks
        ]
        self.inputs: list[Inputs | None] = [None] * len(chunks)
        if mesh.is_first:
            self.inputs = [rows(graph, chunk, plan).to(mesh.device) for chunk in chunks]
        self._ids, self._checksum = sample_ids, checksum
        self._valid_targets = valid_targets or label_counts(graph)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        return Batch(
            microbatches_of(self.plan, phase, step, self.chunks, self.inputs),
            valid_targets=self._valid_targets[phase],
            samples=len(self._ids),
            epoch=step,
            sample_ids=self._ids,
            checksum=self._checksum,
        )


class SharedBatches(Batches):
    """Samples to train on, of which replicas share some in each step; one or no evaluation."""

    fixed_rows = False
    evaluation: RepeatedBatch | Batches | None = None

    def __init__(self, plan: BatchPlan, train: Tensor, samples: str) -> None:
        """`train` int64 [n] are the samples, ascending, and `samples` is their name."""
        self.plan, self.shares = plan, Shares.of(train, plan)
        self.samples, self.total_samples = self.shares.batch_size, len(train)
        self.check_enough(self.total_samples, f"{samples} to train on")
        self.steps_per_epoch = self.shares.steps_per_epoch

    def training(self, steps: range) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        """An iterator over the mini-batches of training steps."""
        raise NotImplementedError

    def example(self) -> MicroBatch:
        with self.training(range(1)) as batches:
            first: MicroBatch = next(batches).microbatches[0]
        # The layers of all stages are timed with it, the last one's too.
        return replace(first, targets={"train": first.context.chunk.targets["train"]})

    def open(
        self, phase: Phase, start: int, stop: int
    ) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        if phase == "train":
            return self.training(range(start, stop))
        assert self.evaluation is not None
        return self.evaluation.open(phase, start, stop)


def copied_rows(graph: Graph | GraphSet, chunk: GraphChunk, plan: BatchPlan) -> Inputs:
    """The features of a chunk's rows, sparse if they are stored so and the model takes them so."""
    rows = feature_rows(graph.features, chunk.nodes, plan.dtype)
    if not isinstance(rows, SparseRows):
        return rows
    if not plan.experiment.model.loaded.sparse_inputs:
        return rows.to_dense()
    return replace(rows, dense=features_form(graph.features, plan) == "dense")


def features_form(features: Tensor, plan: BatchPlan) -> Literal["dense", "stored"]:
    """How layers compute with these features: as dense rows, or as they are stored.

    On a GPU `auto` takes dense rows where a twentieth of the values or more are stored. That share
    is an estimate: one case was measured, on an H200 at 128 columns with a tenth of the values,
    where stored features took 1.9 times as long as data that are dense.
    """
    if features.layout == torch.strided:
        return "dense"
    asked = plan.experiment.features
    if asked != "auto":
        return asked
    filled = _DENSE_FROM * len(features.values()) >= features.numel()
    return "dense" if filled and plan.mesh.device.type == "cuda" else "stored"


def input_rows(graph: Graph | GraphSet, chunk: GraphChunk, plan: BatchPlan) -> Inputs:
    """The features of a chunk's rows, in place where the model's first layer reads them so."""
    features, model = graph.features, plan.experiment.model.loaded
    in_place = features.layout == torch.strided and computed_dtype(features) == plan.dtype
    if in_place and plan.mesh.device.type == "cpu" and model.indexed_inputs:
        return IndexedRows(features, chunk.nodes)
    return copied_rows(graph, chunk, plan)


def label_counts(graph: Graph | GraphSet) -> dict[str, int]:
    """The number of nodes, or graphs, in each split."""
    return {split: int(mask.sum()) for split, mask in graph.masks.items()}


def crc32(tensors: Iterable[Tensor]) -> int:
    """CRC-32 of the bytes of these tensors, one after the other."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.cpu().numpy().tobytes(), found)
    return found

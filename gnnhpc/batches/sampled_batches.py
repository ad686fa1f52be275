"""Batches of a sampled graph: in each step some of its nodes to train on, and neighbours drawn.

Replicas share each mini-batch by one order that all compute. An evaluation is of the whole graph.
"""

from __future__ import annotations

import contextlib
import queue
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, Loading, MicroBatch
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_sampler import GraphSampler
from gnnhpc.batches.order import Places, share, steps_per_epoch
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.prefetch import prefetched
from gnnhpc.core.errors import InputError
from gnnhpc.data.graphs import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.build import kernel_status
from gnnhpc.kernels.sample import compute_alone, is_here
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


@dataclass(frozen=True)
class _Drawn:
    """One replica's mini-batch as a thread has made it."""

    step: int
    epoch: int
    together: int
    """Its nodes over all replicas."""
    places: Places
    chunks: tuple[GraphChunk, ...]
    inputs: tuple[Inputs, ...]
    loading: Loading


class SampledBatches:
    """Raises InputError for a graph that is missing or damaged, or with too few nodes to train on.

    `graph` is given where it is loaded already.
    """

    fixed_rows = False
    drawn = True

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment = plan.experiment
        assert experiment.sampling is not None
        assert experiment.batch_size is not None
        self.plan, self.sampling = plan, experiment.sampling
        check_sampler()
        self.graph = graph or load_graph(experiment.data, plan.root)
        self._train = self.graph.masks["train"].nonzero().flatten()
        self.samples, self.total_samples = experiment.batch_size, len(self._train)
        replicas = plan.mesh.layout.replicas
        if self.samples * replicas > self.total_samples:
            raise InputError(
                f"data {experiment.data.name}",
                "batch_size",
                f"{self.samples} x {replicas} replicas",
                f"at most the {self.total_samples} nodes to train on",
            )
        self.steps_per_epoch = steps_per_epoch(self.total_samples, self.samples * replicas)
        self._whole = self._whole_graph() if experiment.test_steps else None

    def _whole_graph(self) -> ChunkBatches:
        return ChunkBatches(
            replace(self.plan, experiment=self.plan.experiment.whole_graph), self.graph
        )

    def shape_after(self, index: int) -> tuple[int, ...]:
        """Its rows differ from step to step."""
        layer = self.plan.outlines[max(index, 0)]
        return (0, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> MicroBatch:
        with self.open("train", 0, 1) as batches:
            microbatch: MicroBatch = next(batches).microbatches[0]
            return microbatch

    def evaluated(self) -> Context:
        assert self._whole is not None
        return self._whole.evaluated()

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        if phase == "test":
            assert self._whole is not None
            with self._whole.open(phase, start, stop) as batches:
                yield batches
            return
        samplers: queue.SimpleQueue[GraphSampler] = queue.SimpleQueue()
        for sampler in self._samplers():
            samplers.put(sampler)

        def draw(step: int) -> _Drawn:
            sampler = samplers.get()
            try:
                return self._draw(sampler, step)
            finally:
                samplers.put(sampler)

        steps, workers = range(start, stop), self.sampling.workers
        with prefetched(draw, steps, workers, compute_alone) as drawn:
            yield map(self._batch, drawn)

    def _samplers(self) -> list[GraphSampler]:
        """One a thread."""
        first = GraphSampler(
            self.graph,
            self.sampling.fanouts,
            self.plan.experiment.seed,
            semantics=self.sampling.semantics,
            replace=self.sampling.replace,
        )
        return [first, *(first.another() for _ in range(1, self.sampling.workers))]

    def _draw(self, sampler: GraphSampler, step: int) -> _Drawn:
        """By one of the samplers' threads."""
        experiment, mesh = self.plan.experiment, self.plan.mesh
        epoch, together, places = share(
            self.total_samples,
            self.samples,
            mesh.layout.replicas,
            mesh.replica,
            experiment.seed,
            step,
        )
        began = time.perf_counter()
        parts = np.array_split(self._train[places].numpy(), experiment.microbatches)
        chunks = tuple(sampler.chunk(torch.from_numpy(part), step) for part in parts)
        sampled = time.perf_counter()
        inputs = tuple(self._features(chunk) for chunk in chunks)
        gathered = time.perf_counter()
        edges = sum(
            len(block.source) - block.rows_out for chunk in chunks for block in chunk.blocks
        )
        loading = Loading(sampled - began, gathered - sampled, edges)
        return _Drawn(step, epoch, together, places, chunks, inputs, loading)

    def _features(self, chunk: GraphChunk) -> Inputs:
        rows = feature_rows(self.graph.features, chunk.nodes, self.plan.dtype)
        if isinstance(rows, SparseRows) and not self.plan.experiment.model.loaded.sparse_inputs:
            rows = rows.to_dense()
        return rows

    def _batch(self, drawn: _Drawn) -> Batch:
        device, seed = self.plan.mesh.device, self.plan.experiment.seed
        microbatches = []
        for m, (chunk, inputs) in enumerate(zip(drawn.chunks, drawn.inputs, strict=True)):
            there = chunk if device.type == "cpu" else chunk.to(device)
            targets = {"train": there.targets["train"]}
            context = Context(m, drawn.step, seed, there)
            microbatches.append(MicroBatch(inputs.to(device), targets, context))
        return Batch(
            microbatches=tuple(microbatches),
            labelled=drawn.together,
            samples=len(drawn.places),
            epoch=drawn.epoch,
            sample_ids=drawn.places,
            checksum=_checksum(drawn.chunks),
            loading=drawn.loading,
        )

    def graph_facts(self) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "mode": "sampled",
            "sampler": sampling.sampler,
            "semantics": sampling.semantics,
            "fanouts": list(sampling.fanouts),
            "workers": sampling.workers,
            "train_nodes": self.total_samples,
            "steps_per_epoch": self.steps_per_epoch,
        }


def check_sampler() -> None:
    """Compile it, so that it is among the kernels that this rank is known by.

    Raises InputError where that is not possible.
    """
    if not is_here():
        raise InputError(
            "sampling", "sampler", f"ours ({kernel_status('sample')})", "a C++ compiler, as g++"
        )


def _checksum(chunks: tuple[GraphChunk, ...]) -> int:
    """CRC-32 of the seeds of these chunks and of their labels."""
    found = 0
    for chunk in chunks:
        found = zlib.crc32(_bytes(chunk.nodes[: chunk.own]), found)
        found = zlib.crc32(_bytes(chunk.targets["train"]), found)
    return found


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()

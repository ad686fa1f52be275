"""Batches of a graph: one chunk for each micro-batch of each replica, the same in every step."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.subgraphs import subgraph_builder
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.graphs import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.rebuilt import RebuiltBlocks
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}
"""The splits whose labels a phase needs."""


class ChunkBatches:
    """Raises InputError for a graph that is missing or damaged; `graph` where it is loaded."""

    steps_per_epoch = 1
    fixed_rows = True
    drawn = False

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        graph = graph or load_graph(experiment.data, plan.root)
        self.plan = plan
        self.chunkset = build_chunks(
            graph, experiment.total_chunks, experiment.chunks, hops(plan.outlines)
        )
        first = mesh.replica * experiment.microbatches
        mine = self.chunkset.chunks[first : first + experiment.microbatches]
        if experiment.rebuild == "layer":
            mine = self._rebuilt(graph, mine)
        self._inputs = [self._features(graph, chunk) if mesh.is_first else None for chunk in mine]
        self._first = mine[0]
        self._chunks = [
            (chunk if mesh.has_loss else replace(chunk, targets={})).to(mesh.device)
            for chunk in mine
        ]
        self._checksum = checksum(mine)
        self._own = np.concatenate([chunk.nodes[: chunk.own].numpy() for chunk in mine])
        self.samples = sum(chunk.own for chunk in mine)
        self.total_samples = len(graph.labels)
        self._labelled = {split: int(mask.sum()) for split, mask in graph.masks.items()}

    def _features(self, graph: Graph, chunk: GraphChunk) -> Inputs:
        return copied_rows(graph, chunk, self.plan).to(self.plan.mesh.device)

    def _rebuilt(self, graph: Graph, chunks: tuple[GraphChunk, ...]) -> tuple[GraphChunk, ...]:
        """The same chunks, whose edges are cut out of the graph whenever a layer asks for them."""
        whose = getattr(self.plan.experiment.model, "implementation", "own")
        build = subgraph_builder(graph, whose)
        return tuple(
            replace(chunk, blocks=RebuiltBlocks(build, chunk.nodes, len(chunk.blocks)))
            for chunk in chunks
        )

    def shape_after(self, index: int) -> tuple[int, ...]:
        outlines = self.plan.outlines
        rows = self.chunkset.rows[hops(outlines[: index + 1])]
        return (rows, *(outlines[0].inputs if index < 0 else outlines[index].shape))

    def example(self) -> MicroBatch:
        targets = self._targets(self._first.to(self.plan.mesh.device), "train")
        context = self._context(0, 0)
        blocks = context.chunk.blocks
        if isinstance(blocks, RebuiltBlocks):
            # A profile runs layers of all stages here, whose edges are no step's.
            context = replace(context, graph=replace(context.chunk, blocks=blocks.unasked()))
        return MicroBatch(self._inputs[0], targets, context)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        is_last = self.plan.mesh.has_loss
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    self._inputs[m],
                    self._targets(chunk, phase) if is_last else {},
                    self._context(m, step),
                )
                for m, chunk in enumerate(self._chunks)
            ),
            labelled=self._labelled[phase],
            samples=self.samples,
            epoch=step,
            sample_ids=self._own,
            checksum=self._checksum,
        )

    def _context(self, m: int, step: int) -> Context:
        return Context(m, step, self.plan.experiment.seed, self._chunks[m])

    @staticmethod
    def _targets(chunk: GraphChunk, phase: Phase) -> dict[str, torch.Tensor]:
        return {split: chunk.targets[split] for split in SPLITS[phase]}

    def graph_facts(self) -> dict[str, Any]:
        chunkset = self.chunkset
        return {
            "mode": chunkset.mode,
            "chunks": len(chunkset.chunks),
            "edges_kept": chunkset.edges_kept,
            "node_redundancy": chunkset.node_redundancy,
            "edge_redundancy": chunkset.edge_redundancy,
            "rows": list(chunkset.rows),
            "own": [chunk.own for chunk in chunkset.chunks],
        }


def copied_rows(graph: Graph | GraphSet, chunk: GraphChunk, plan: BatchPlan) -> Inputs:
    """The features of a chunk's rows, as stored if the model takes them so."""
    rows = feature_rows(graph.features, chunk.nodes, plan.dtype)
    if isinstance(rows, SparseRows) and not plan.experiment.model.loaded.sparse_inputs:
        rows = rows.to_dense()
    return rows


def checksum(chunks: tuple[GraphChunk, ...]) -> int:
    """CRC-32 of the nodes of these chunks and of their labels in every split, in their order."""
    found = 0
    for chunk in chunks:
        for tensor in (chunk.nodes, *(chunk.targets[split] for split in sorted(chunk.targets))):
            found = zlib.crc32(tensor.numpy().tobytes(), found)
    return found

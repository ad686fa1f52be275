"""Mini-batches of a graph: one chunk for each micro-batch and replica, the same in every step."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import SPLITS, Batch, BatchPlan, Inputs, MicroBatch
from gnnhpc.batches.rebuilt_blocks import RebuiltBlocks, subgraph_builder
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import IndexedRows, SparseRows, computed_dtype, feature_rows
from gnnhpc.records.schema import Phase


class ChunkBatches:
    """Raises InputError for a graph that is missing or damaged.

    `graph` is given where it is loaded already.
    """

    steps_per_epoch = 1
    fixed_rows = True
    made_in_step = False

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        graph = graph or load_graph(experiment.data, plan.root)
        self.plan = plan
        self.chunkset = build_chunks(
            graph, experiment.total_chunks, experiment.chunks, hops(plan.layer_specs)
        )
        first = mesh.replica * experiment.microbatches
        mine = self.chunkset.chunks[first : first + experiment.microbatches]
        if experiment.rebuild == "layer":
            mine = self._rebuilt(graph, mine)
        self._inputs: list[Inputs | None] = [None] * len(mine)
        if mesh.is_first:
            self._inputs = [copied_rows(graph, chunk, plan).to(mesh.device) for chunk in mine]
        self._first = mine[0]
        self._chunks = [
            (chunk if mesh.has_loss else replace(chunk, targets={})).to(mesh.device)
            for chunk in mine
        ]
        self._checksum = crc32(
            [each for c in mine for each in (c.nodes, *(c.targets[s] for s in sorted(c.targets)))]
        )
        self._own = np.concatenate([chunk.nodes[: chunk.own].numpy() for chunk in mine])
        self.samples = sum(chunk.own for chunk in mine)
        self.total_samples = len(graph.labels)
        self._valid_targets = {split: int(mask.sum()) for split, mask in graph.masks.items()}

    def _rebuilt(self, graph: Graph, chunks: tuple[GraphChunk, ...]) -> tuple[GraphChunk, ...]:
        """The same chunks; their edges are cut out of the graph whenever a layer asks for them."""
        implementation = getattr(self.plan.experiment.model, "implementation", "own")
        build = subgraph_builder(graph, implementation)
        return tuple(
            replace(chunk, blocks=RebuiltBlocks(build, chunk.nodes, len(chunk.blocks)))
            for chunk in chunks
        )

    def shape_after(self, index: int) -> tuple[int, ...]:
        specs = self.plan.layer_specs
        rows = self.chunkset.rows[hops(specs[: index + 1])]
        return (rows, *(specs[0].inputs if index < 0 else specs[index].shape))

    def example(self) -> MicroBatch:
        targets = _targets(self._first.to(self.plan.mesh.device), "train")
        chunk = self._chunks[0]
        if isinstance(chunk.blocks, RebuiltBlocks):
            # A profile runs the layers of all stages, whose edges belong to no step.
            chunk = replace(chunk, blocks=chunk.blocks.unused())
        return MicroBatch(self._inputs[0], targets, self.plan.context(0, 0, chunk))

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        has_loss = self.plan.mesh.has_loss
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    self._inputs[m],
                    _targets(chunk, phase) if has_loss else {},
                    self.plan.context(m, step, chunk),
                )
                for m, chunk in enumerate(self._chunks)
            ),
            valid_targets=self._valid_targets[phase],
            samples=self.samples,
            epoch=step,
            sample_ids=self._own,
            checksum=self._checksum,
        )

    def graph_metadata(self) -> dict[str, Any]:
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
    """The features of a chunk's rows, sparse if they are stored so and the model takes them so."""
    rows = feature_rows(graph.features, chunk.nodes, plan.dtype)
    if isinstance(rows, SparseRows) and not plan.experiment.model.loaded.sparse_inputs:
        rows = rows.to_dense()
    return rows


def input_rows(graph: Graph | GraphSet, chunk: GraphChunk, plan: BatchPlan) -> Inputs:
    """The features of a chunk's rows, in place where the model's first layer reads them so."""
    features, model = graph.features, plan.experiment.model.loaded
    in_place = features.layout == torch.strided and computed_dtype(features) == plan.dtype
    if in_place and plan.mesh.device.type == "cpu" and model.indexed_inputs:
        return IndexedRows(features, chunk.nodes)
    return copied_rows(graph, chunk, plan)


def crc32(tensors: list[Tensor]) -> int:
    """CRC-32 of the bytes of these tensors, one after the other."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.cpu().numpy().tobytes(), found)
    return found


def _targets(chunk: GraphChunk, phase: Phase) -> dict[str, Tensor]:
    return {split: chunk.targets[split] for split in SPLITS[phase]}

"""Mini-batches of a graph: one chunk for each micro-batch and replica, the same in every step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gnnhpc.batches.batch import Batch, Batches, BatchPlan, MicroBatch
from gnnhpc.batches.graph_batch import RepeatedBatch, copied_rows, crc32, features_form
from gnnhpc.batches.rebuilt_blocks import RebuiltBlocks, subgraph_builder
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.records.schema import Phase


class ChunkBatches(Batches):
    """Raises InputError for a graph that is missing or damaged.

    `graph` is given where it is loaded already.
    """

    steps_per_epoch = 1

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment = plan.experiment
        graph = graph or load_graph(experiment.data, plan.root)
        self.plan = plan
        self.chunkset = build_chunks(
            graph, experiment.total_chunks, experiment.chunks, hops(plan.layer_specs)
        )
        mine = self.chunkset.chunks[plan.replica_slice]
        if experiment.rebuild == "layer":
            # Edges are cut out of the graph whenever a layer asks for them.
            build = subgraph_builder(graph, getattr(experiment.model, "implementation", "own"))
            mine = tuple(
                replace(chunk, blocks=RebuiltBlocks(build, chunk.nodes, len(chunk.blocks)))
                for chunk in mine
            )
        self._batch = RepeatedBatch(
            plan,
            graph,
            mine,
            copied_rows,
            np.concatenate([chunk.nodes[: chunk.own].numpy() for chunk in mine]),
            crc32(x for c in mine for x in (c.nodes, *(c.targets[s] for s in sorted(c.targets)))),
        )
        # The layers of all stages are timed with it, the last one's too.
        self._example_targets = mine[0].targets["train"]
        self._features_form = features_form(graph.features, plan)
        self.samples = sum(chunk.own for chunk in mine)
        self.total_samples = len(graph.labels)

    def shape_after(self, index: int) -> tuple[int, ...]:
        rows = self.chunkset.rows[hops(self.plan.layer_specs[: index + 1])]
        return self.plan.shape_after(index, rows)

    def example(self) -> MicroBatch:
        context = self.plan.context(0, 0, self._batch.chunks[0])
        targets = {"train": self._example_targets.to(self.plan.mesh.device)}
        return MicroBatch(self._batch.inputs[0], targets, context)

    def open(
        self, phase: Phase, start: int, stop: int
    ) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        return self._batch.open(phase, start, stop)

    def graph_metadata(self) -> dict[str, Any]:
        chunkset = self.chunkset
        return {
            "mode": chunkset.mode,
            "features": self._features_form,
            "chunks": len(chunkset.chunks),
            "edges_kept": chunkset.edges_kept,
            "node_redundancy": chunkset.node_redundancy,
            "edge_redundancy": chunkset.edge_redundancy,
        }

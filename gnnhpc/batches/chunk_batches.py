"""Mini-batches of a graph: one chunk for each micro-batch and replica, the same in every step.

Blocks of edges are cut once, or out of the whole graph again for each layer of each step. PyG, DGL
and this suite cut the same block, edge for edge in the same order, so that layers compute the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Batches, BatchPlan, MicroBatch
from gnnhpc.batches.graph_batch import RepeatedBatch, copied_rows, crc32, features_form
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.blocks import Block, BlocksOnRequest
from gnnhpc.graphs.graph import Graph, block_weights
from gnnhpc.graphs.halo_chunks import build_chunks, cut_block
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


BlockBuilder = Callable[[Tensor], Block]
"""Cuts the block of a chunk's nodes, int64 [rows] with -1 for padding, out of a graph, on a CPU."""


class RebuiltBlocks(BlocksOnRequest):
    """The block of `nodes` for each of `count` layers, built whenever one asks for it, then moved.

    For chunks without a halo: the edges are the same in every layer.
    """

    def __init__(
        self, build: BlockBuilder, nodes: Tensor, count: int, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(device, ())
        self._build, self._nodes, self._count = build, nodes, count

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> Block:
        return self._build(self._nodes).to(self.device)

    @property
    def present(self) -> list[Block]:
        """The blocks that layers get, which are built again for validation."""
        return [self._build(self._nodes)] * self._count

    def to(self, device: torch.device | str) -> RebuiltBlocks:
        return RebuiltBlocks(self._build, self._nodes, self._count, device)


def subgraph_builder(graph: Graph, implementation: str) -> BlockBuilder:
    """The library's own function for `pyg` and `dgl`, ours for every other implementation.

    Raises InputError where DGL is not installed.
    """

    def ours(nodes: Tensor) -> Block:
        return cut_block(graph.in_edges, nodes, len(nodes), graph.edge_weight)

    if implementation not in ("pyg", "dgl"):
        return ours
    # The edges with self-loops, in the order of a block.
    whole = ours(torch.arange(graph.nodes))
    cut = _by_pyg(whole) if implementation == "pyg" else _by_dgl(whole)

    def build(nodes: Tensor) -> Block:
        source, target, edge = cut(nodes[nodes >= 0])
        indptr = torch.zeros(len(nodes) + 1, dtype=torch.int64)
        # Padding rows come after all nodes.
        torch.cumsum(torch.bincount(target, minlength=len(nodes)), 0, out=indptr[1:])
        weights = block_weights(graph.edge_weight, edge)
        return Block(indptr, source, target, edge, len(nodes), weights)

    return build


Cut = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Maps nodes to the sources, targets (both local, targets ascending) and numbers of their edges."""


def _by_pyg(whole: Block) -> Cut:
    from torch_geometric.utils import subgraph

    def cut(nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        options = {"relabel_nodes": True, "num_nodes": whole.rows_in}
        (source, target), edge = subgraph(nodes, whole.edge_index, whole.edge, **options)
        return source, target, edge

    return cut


def _by_dgl(whole: Block) -> Cut:
    from gnnhpc.models.libraries import import_dgl

    dgl = import_dgl()
    # DGL orders a subgraph's edges by their first end: reversed edges come by target.
    reverse = dgl.graph((whole.target, whole.source), num_nodes=whole.rows_in)

    def cut(nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = dgl.node_subgraph(reverse, nodes)
        target, source = found.edges()
        return source, target, whole.edge[found.edata[dgl.EID]]

    return cut

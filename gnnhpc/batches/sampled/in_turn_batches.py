"""Evaluation of a large graph, layer by layer: a replica's share of the nodes, all neighbours."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import numpy as np
import torch

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.chunk_batches import SPLITS
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.draws import features_of
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.shuffle import cut_evenly
from gnnhpc.core.layer_specs import hops
from gnnhpc.graphs.blocks import FullGraph, GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.in_turn import RowsInTurn
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


class InTurnBatches:
    """One mini-batch, the same in every step: consecutive nodes, cut into replicas and these into
    micro-batches."""

    def __init__(self, plan: BatchPlan, graph: Graph, sampler: GraphSampler) -> None:
        self._plan, self._graph = plan, graph
        mesh, parts = plan.mesh, plan.experiment.microbatches
        shares = cut_evenly(range(graph.nodes), mesh.layout.replicas)
        mine = shares[mesh.replica]
        one_hop = sampler.whole()
        self._microbatches = []
        for own in cut_evenly(mine, parts):
            in_turn = RowsInTurn(
                one_hop, sampler.indptr, mine, own, hops(plan.outlines), mesh.sum_over_replicas
            )
            chunk = self._chunk(own, in_turn)
            self._microbatches.append((features_of(graph, chunk, plan), chunk))
        self._own = np.arange(mine.start, mine.stop)
        self._labelled = {split: int(mask.sum()) for split, mask in graph.masks.items()}

    def _chunk(self, own: range, in_turn: RowsInTurn) -> GraphChunk:
        graph = self._graph
        nodes = (torch.arange(graph.nodes) + own.start) % graph.nodes
        return GraphChunk(
            nodes=nodes,
            rows=(graph.nodes,) * in_turn.hops + (len(own),),
            blocks=(),
            degree=in_turn.indptr.diff()[nodes] + 1,
            targets=graph.targets(nodes[: len(own)]),
            own=len(own),
            full=FullGraph.of(graph),
            in_turn=in_turn,
        )

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(phase, step) for step in range(start, stop))

    def _batch(self, phase: Phase, step: int) -> Batch:
        return Batch(
            microbatches=tuple(
                self._microbatch(phase, m, step) for m in range(len(self._microbatches))
            ),
            labelled=self._labelled[phase],
            samples=len(self._own),
            epoch=step,
            sample_ids=self._own,
            checksum=zlib.crc32(self._own.tobytes()),
        )

    def _microbatch(self, phase: Phase, m: int, step: int) -> MicroBatch:
        mesh = self._plan.mesh
        inputs = self._microbatches[m][0] if mesh.is_first else None
        targets = self._microbatches[m][1].targets
        wanted = {split: targets[split] for split in SPLITS[phase]} if mesh.has_loss else {}
        return MicroBatch(inputs, wanted, self._context(m, step))

    def _context(self, m: int, step: int) -> Context:
        return Context(m, step, self._plan.experiment.seed, self._microbatches[m][1])

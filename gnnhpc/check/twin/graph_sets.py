"""The twin's own mini-batches of many small graphs: put together graph by graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnhpc.check.check_slice import CheckSlice
from gnnhpc.check.plain.shares import PlainShares
from gnnhpc.check.twin.data import chosen_rows
from gnnhpc.check.twin.pieces import Labels, Piece, graph_inputs
from gnnhpc.check.twin.sampled import rows_of
from gnnhpc.check.twin.scene import TwinGraph
from gnnhpc.core.layer_specs import hops
from gnnhpc.data.load_graph_sets import load_graph_set
from gnnhpc.graphs.disjoint_union import DisjointUnions
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


class TwinGraphSet:
    """`whole` for the twin's own layers; else with unions as the run's layers get them."""

    def __init__(self, part: CheckSlice, graphs: GraphSet, *, whole: bool) -> None:
        self._part, self._graphs = part, graphs
        self._inputs = graph_inputs(graphs, part.experiment.dtype)
        self._unions = None if whole else DisjointUnions(graphs, hops(part.outlines))

    def pieces(self, phase: Phase, step: int) -> list[Piece]:
        """The micro-batches of all replicas in one step."""
        return [
            self.piece(numbers, phase, step, replica, microbatch)
            for replica, parts in enumerate(self._shares(phase, step))
            for microbatch, numbers in enumerate(parts)
        ]

    def _shares(self, phase: Phase, step: int) -> Iterator[Sequence[Labels]]:
        """Of each replica, the graphs of each micro-batch, ascending."""
        experiment = self._part.experiment
        chosen = np.any([self._graphs.masks[split].numpy() for split in SPLITS[phase]], axis=0)
        numbers = np.flatnonzero(chosen)
        if phase == "train":
            for replica in range(experiment.layout.replicas):
                yield PlainShares.of(experiment, numbers, replica).nodes(step)
            return
        parts = np.array_split(numbers, experiment.total_chunks)
        for first in range(0, len(parts), experiment.microbatches):
            yield parts[first : first + experiment.microbatches]

    def piece(
        self, numbers: Labels, phase: Phase, step: int, replica: int = 0, microbatch: int = 0
    ) -> Piece:
        """Of these graphs, one after another."""
        graphs, context, own_inputs = self._graphs, None, None
        nodes, pooled, edges = self._united(numbers)
        targets = {
            split: torch.tensor(
                [
                    int(graphs.labels[g]) if graphs.masks[split][g] else IGNORED
                    for g in numbers.tolist()
                ],
                dtype=torch.int64,
            )
            for split in SPLITS[phase]
        }
        inputs = rows_of(self._inputs, nodes)
        if self._unions is not None:
            experiment = self._part.experiment
            chunk = self._unions.of(torch.from_numpy(numbers), SPLITS[phase])
            context = Context(microbatch, step, experiment.seed, chunk)
            own_inputs = feature_rows(graphs.features, nodes, getattr(torch, experiment.dtype))
            if not experiment.model.loaded.sparse_inputs and not isinstance(own_inputs, Tensor):
                own_inputs = own_inputs.to_dense()
        return Piece(
            inputs if isinstance(inputs, Tensor) or context is None else inputs.to_dense(),
            targets,
            replica,
            microbatch,
            ids=nodes,
            graph=edges,
            pooled=pooled,
            context=context,
            own_inputs=own_inputs,
        )

    def _united(self, numbers: Labels) -> tuple[Tensor, Tensor, TwinGraph]:
        """The nodes of these graphs, each one's place among the graphs, and all of their edges."""
        first, (source, target) = self._graphs.first.tolist(), self._graphs.edges.numpy()
        nodes: list[int] = []
        pooled: list[int] = []
        ends: list[Labels] = [np.empty((3, 0), dtype=np.int64)]
        for place, graph in enumerate(numbers.tolist()):
            own = range(first[graph], first[graph + 1])
            into = np.arange(*np.searchsorted(target, (own.start, own.stop)))
            moved = len(nodes) - own.start
            ends.append(np.stack((source[into] + moved, target[into] + moved, into)))
            nodes += own
            pooled += [place] * len(own)
        ids, rows = torch.tensor(nodes, dtype=torch.int64), torch.arange(len(nodes))
        loops = torch.stack((rows, rows, self._graphs.edges.shape[1] + ids))
        edges = torch.cat((torch.from_numpy(np.concatenate(ends, axis=1)), loops), 1)
        graph_edges = TwinGraph(len(nodes), edges[0], edges[1], edges[2])
        return ids, torch.tensor(pooled, dtype=torch.int64), graph_edges


def sliced_graph_set(part: CheckSlice, root: Path | None) -> GraphSet:
    """The graphs of an experiment, or what its slice keeps of each split."""
    graphs = load_graph_set(part.experiment.data, root)
    if part.graphs is None:
        return graphs
    kept = torch.cat([mask.nonzero().flatten()[: part.graphs] for mask in graphs.masks.values()])
    kept = kept.sort().values
    counts = graphs.first.diff()
    chosen = torch.zeros(len(graphs), dtype=torch.bool)
    chosen[kept] = True
    nodes = torch.repeat_interleave(chosen, counts).nonzero().flatten()
    number = torch.full((graphs.nodes,), -1).scatter(0, nodes, torch.arange(len(nodes)))
    edges = number[graphs.edges]
    return GraphSet(
        graphs.name,
        chosen_rows(graphs.features, nodes),
        edges[:, edges[0] >= 0],
        torch.cat((torch.zeros(1, dtype=torch.int64), counts[kept].cumsum(0))),
        graphs.labels[kept],
        {split: mask[kept] for split, mask in graphs.masks.items()},
        graphs.classes,
    )

"""The reference's micro-batches of many small graphs, put together graph by graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.disjoint_union import DisjointUnions
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.forward_pass import EdgeList
from gnnhpc.validation.reference.micro_batches import (
    Ids,
    ReferenceBatch,
    node_features,
    rows_of,
)
from gnnhpc.validation.reference.order import SampleSchedule, split_nodes

SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


class GraphSetData:
    """`custom` adds what the layers of a custom model take: the union as a chunk."""

    def __init__(
        self, experiment: Experiment, specs: LayerSpecs, graphs: GraphSet, *, custom: bool
    ) -> None:
        self._experiment, self._graphs = experiment, graphs
        self._features = node_features(graphs)
        self._unions = DisjointUnions(graphs, hops(specs)) if custom else None

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        return [
            self._batch(numbers, phase, step, replica, microbatch)
            for replica, parts in enumerate(self._parts(phase, step))
            for microbatch, numbers in enumerate(parts)
        ]

    def _parts(self, phase: Phase, step: int) -> Iterator[Sequence[Ids]]:
        """For each replica, the graphs of each micro-batch, ascending."""
        experiment = self._experiment
        masks = [self._graphs.masks[split].numpy() for split in SPLITS[phase]]
        numbers = np.flatnonzero(np.any(masks, axis=0))
        if phase == "train":
            schedule = SampleSchedule.of(experiment, len(numbers))
            for replica in range(experiment.layout.replicas):
                mine = numbers[schedule.share(step, replica)]
                yield split_nodes(mine, experiment.microbatches)
            return
        parts = np.array_split(numbers, experiment.total_chunks)
        for first in range(0, len(parts), experiment.microbatches):
            yield parts[first : first + experiment.microbatches]

    def _batch(
        self, numbers: Ids, phase: Phase, step: int, replica: int, microbatch: int
    ) -> ReferenceBatch:
        graphs = self._graphs
        nodes, graph_of_row, edges = self._union(numbers)
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
        context, layer_input = None, None
        if self._unions is not None:
            experiment = self._experiment
            chunk = self._unions.of(torch.from_numpy(numbers), SPLITS[phase])
            context = Context(microbatch, step, experiment.seed, chunk)
            layer_input = feature_rows(graphs.features, nodes, torch.float64)
            if not experiment.model.loaded.sparse_inputs and not isinstance(layer_input, Tensor):
                layer_input = layer_input.to_dense()
        return ReferenceBatch(
            rows_of(self._features, nodes),
            targets,
            replica,
            microbatch,
            nodes=nodes,
            edges=edges,
            graph_of_row=graph_of_row,
            context=context,
            layer_input=layer_input,
        )

    def _union(self, numbers: Ids) -> tuple[Tensor, Tensor, EdgeList]:
        """The nodes of these graphs, the place of each one's graph, and all of their edges."""
        first, (source, target) = self._graphs.first.tolist(), self._graphs.edges.numpy()
        nodes: list[int] = []
        graph_of_row: list[int] = []
        ends: list[Ids] = [np.empty((3, 0), dtype=np.int64)]
        for place, graph in enumerate(numbers.tolist()):
            own = range(first[graph], first[graph + 1])
            into = np.arange(*np.searchsorted(target, (own.start, own.stop)))
            moved = len(nodes) - own.start
            ends.append(np.stack((source[into] + moved, target[into] + moved, into)))
            nodes += own
            graph_of_row += [place] * len(own)
        ids, rows = torch.tensor(nodes, dtype=torch.int64), torch.arange(len(nodes))
        loops = torch.stack((rows, rows, self._graphs.edges.shape[1] + ids))
        edges = torch.cat((torch.from_numpy(np.concatenate(ends, axis=1)), loops), 1)
        return ids, torch.tensor(graph_of_row, dtype=torch.int64), EdgeList(len(nodes), *edges)

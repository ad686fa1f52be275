"""The micro-batches that the reference computes on, by the documented rules: images, graph sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, FullGraph, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.independent_readers import Array as Numbers
from gnnhpc.validation.independent_readers import read_images
from gnnhpc.validation.reference.sample_schedule import SampleSchedule, split_nodes

Ids = npt.NDArray[np.int64]
Activation = Tensor | SparseRows
SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}


@dataclass(frozen=True)
class ReferenceBatch:
    """The input and targets of one forward pass: a micro-batch, or a whole graph at once."""

    inputs: Activation
    """[rows, ...], float64."""
    targets: Mapping[str, Tensor]
    """int64 [rows of the output] by split, IGNORED where a row does not count; or pairs of links,
    [pairs, 3]: two rows, and 1 for a link or 0 for a negative."""
    context: Context
    """With a chunk of the graph, whose rows may go on after those that count."""
    replica: int = 0
    microbatch: int = 0

    @property
    def nodes(self) -> Tensor | None:
        """int64 [rows]: the node of each row, -1 for padding; None for images."""
        return None if self.context.graph is None else self.context.graph.nodes


class ReferenceData(Protocol):
    """The micro-batches of an experiment."""

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        """The micro-batches of all replicas in one step, or one batch that holds them all."""
        ...


class ImageData:
    """Images, cropped to the top left `side` x `side` pixels where `side` is given.

    Raises OSError for files that cannot be read.
    """

    def __init__(self, experiment: Experiment, side: int | None, root: Path | None) -> None:
        self._experiment, self._side, self._root = experiment, side, root
        self._splits: dict[Phase, tuple[Numbers, Numbers]] = {}

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        experiment, side = self._experiment, self._side
        if phase not in self._splits:
            self._splits[phase] = read_images(experiment.data, self._root, phase)
        pixels, labels = self._splits[phase]
        schedule, batches = SampleSchedule.of(experiment, len(labels)), []
        for replica in range(experiment.layout.replicas):
            share = schedule.share(step, replica)
            for microbatch, rows in enumerate(np.split(share, experiment.microbatches)):
                planes = pixels[rows, :, :side, :side].reshape(len(rows), pixels.shape[1], -1)
                values = torch.from_numpy(planes.astype(np.float64) / 255.0)
                batches.append(
                    ReferenceBatch(
                        values.transpose(1, 2),
                        {phase: torch.from_numpy(labels[rows])},
                        Context(microbatch, step, experiment.seed),
                        replica,
                        microbatch,
                    )
                )
        return batches


class GraphSetData:
    """Many small graphs; those of a micro-batch are one chunk."""

    def __init__(self, experiment: Experiment, specs: LayerSpecs, graphs: GraphSet) -> None:
        self._experiment, self._graphs, self._hops = experiment, graphs, hops(specs)

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
        chunk = self._union(numbers, SPLITS[phase])
        context = Context(microbatch, step, self._experiment.seed, chunk)
        inputs = node_features(self._graphs, chunk.nodes)
        return ReferenceBatch(inputs, chunk.targets, context, replica, microbatch)

    def _union(self, numbers: Ids, splits: tuple[str, ...]) -> GraphChunk:
        """The nodes of these graphs, one graph after another, and all of their edges."""
        graphs, chosen = self._graphs, torch.from_numpy(numbers)
        graph_of = torch.repeat_interleave(torch.arange(len(graphs)), graphs.first.diff())
        ids = torch.isin(graph_of, chosen).nonzero().flatten()
        rows = torch.arange(len(ids))
        row = torch.full((graphs.nodes,), -1).scatter(0, ids, rows)
        into = (row[graphs.edges[1]] >= 0).nonzero().flatten()
        # The edges into each row, its self-loop last.
        source, target = (torch.cat((row[ends[into]], rows)) for ends in graphs.edges)
        number = torch.cat((into, graphs.edges.shape[1] + ids))
        block = block_of(source, target, number, len(ids), len(ids))
        graph_of_row = torch.searchsorted(chosen, graph_of[ids])
        return GraphChunk(
            nodes=ids,
            rows=(len(ids),) * (self._hops + 1) + (len(chosen),),
            blocks=(block,) * self._hops,
            degree=block.indptr.diff(),
            targets={
                split: graphs.labels[chosen].where(graphs.masks[split][chosen], IGNORED)
                for split in splits
            },
            own=len(ids),
            full=FullGraph(graphs.nodes, graphs.edges.shape[1], 0, graphs.classes),
            graphs=chosen,
            pooling=block_of(rows, graph_of_row, ids, len(ids), len(chosen)),
        )


def node_features(data: Graph | GraphSet, nodes: Tensor) -> Activation:
    """The features of nodes, int64 [n], in float64; zeros for -1."""
    features, is_real = data.features, nodes >= 0
    nodes = nodes.clamp(min=0)
    if features.layout != torch.sparse_csr:
        return features[nodes].double() * is_real[:, None]
    first = features.crow_indices()
    counts = torch.where(is_real, first.diff()[nodes], 0)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    moved = torch.repeat_interleave(first[nodes] - indptr[:-1], counts)
    entries = torch.arange(len(moved)) + moved
    values, columns = features.values()[entries].double(), features.col_indices()[entries].long()
    return SparseRows(indptr, columns, values, entries, features.shape[1])


def block_of(source: Tensor, target: Tensor, number: Tensor, rows_in: int, rows_out: int) -> Block:
    """A block of these edges, int64 [E] each, sorted by target."""
    order = torch.argsort(target, stable=True)
    counts = torch.bincount(target, minlength=rows_out)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return Block(indptr, source[order], target[order], number[order], rows_in)

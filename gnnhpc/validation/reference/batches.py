"""The micro-batches that the reference computes on, by the documented rules; of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.independent_readers import read_images
from gnnhpc.validation.reference.random_numbers import SampleSchedule

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]
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

    @property
    def nodes(self) -> Tensor | None:
        """int64 [rows]: the node of each row, -1 for padding; None for images."""
        return None if self.context.graph is None else self.context.graph.nodes


Batches = Callable[[Phase, int], list[ReferenceBatch]]
"""The micro-batches of all replicas in one step, or one batch that holds them all."""


def image_batches(experiment: Experiment, side: int | None, root: Path | None) -> Batches:
    """Of images, cropped to the top left `side` x `side` pixels where `side` is a number.

    Raises OSError for files that cannot be read, when they are needed.
    """
    read = functools.cache(lambda phase: read_images(experiment.data, root, phase))

    def batches(phase: Phase, step: int) -> list[ReferenceBatch]:
        pixels, labels = read(phase)
        schedule, found = SampleSchedule(experiment, len(labels)), []
        for replica in range(experiment.layout.replicas):
            share = schedule.share(step, replica)
            for microbatch, rows in enumerate(np.split(share, experiment.microbatches)):
                planes = pixels[rows, :, :side, :side].reshape(len(rows), pixels.shape[1], -1)
                inputs = torch.from_numpy(planes.astype(np.float64) / 255.0).transpose(1, 2)
                targets: dict[str, Tensor] = {phase: torch.from_numpy(labels[rows])}
                context = Context(microbatch, step, experiment.seed)
                found.append(ReferenceBatch(inputs, targets, context, replica))
        return found

    return batches


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

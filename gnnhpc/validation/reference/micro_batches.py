"""The micro-batches that the reference computes on, from the raw data by the documented rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.forward_pass import Activation, EdgeList, SparseFeatures
from gnnhpc.validation.reference.order import SampleSchedule
from gnnhpc.validation.reference.readers_images import Labels, Pixels, read_images

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampledEdges:
    """The edges that a library's sampler gave one micro-batch, which no rule predicts."""

    step: int
    replica: int
    microbatch: int
    layers: list[tuple[Ids, Ids, Ids]]
    """For each layer that uses neighbours, the first layer's first: sources, targets and numbers
    in the graph of its edges, without self-loops."""


CapturedEdges = Mapping[tuple[int, int, int], SampledEdges]
"""By step, replica and micro-batch."""


@dataclass(frozen=True)
class ReferenceBatch:
    """The input and targets of one forward pass: a micro-batch, or a whole graph at once."""

    inputs: Activation
    """[rows, ...], float64."""
    targets: Mapping[str, Tensor]
    """int64 [rows of the output] by split, IGNORED where a row does not count; or pairs of links,
    [pairs, 3]: two rows, and 1 for a link or 0 for a negative."""
    replica: int = 0
    microbatch: int = 0
    nodes: Tensor | None = None
    """int64 [rows]: the node of each row, -1 for padding; None for images."""
    edges: EdgeList | None = None
    layer_edges: tuple[EdgeList, ...] = ()
    """Of a sampled mini-batch: the edges of each layer that uses neighbours, the first layer's
    first, all between the same rows."""
    graph_of_row: Tensor | None = None
    """int64 [rows]: the place of each node's graph among many small graphs."""
    context: Context | None = None
    """For the layers of a custom model."""
    layer_input: Tensor | SparseRows | None = None
    """The input that a custom model's first layer takes, where it is not `inputs`."""

    @property
    def graphs(self) -> int:
        """The number of small graphs."""
        return max(map(len, self.targets.values()), default=0)


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
        self._splits: dict[Phase, tuple[Pixels, Labels]] = {}

    def batches(self, phase: Phase, step: int) -> list[ReferenceBatch]:
        if phase not in self._splits:
            pixels, labels = read_images(self._experiment.data, self._root, phase)
            self._splits[phase] = pixels[:, :, : self._side, : self._side], labels
        return image_batches(self._experiment, *self._splits[phase], phase, step)


def image_batches(
    experiment: Experiment, pixels: Pixels, labels: Labels, phase: Phase, step: int
) -> list[ReferenceBatch]:
    """The micro-batches of one step; `pixels` uint8 [N, channels, H, W] are those of the phase."""
    schedule = SampleSchedule.of(experiment, len(labels))
    batches = []
    for replica in range(experiment.layout.replicas):
        share = schedule.share(step, replica)
        for microbatch, rows in enumerate(np.split(share, experiment.microbatches)):
            planes = pixels[rows].reshape(len(rows), pixels.shape[1], -1)
            values = torch.from_numpy(planes.astype(np.float64) / 255.0)
            batches.append(
                ReferenceBatch(
                    values.transpose(1, 2),
                    {phase: torch.from_numpy(labels[rows])},
                    replica,
                    microbatch,
                    context=Context(microbatch, step, experiment.seed),
                )
            )
    return batches


def node_features(graph: Graph | GraphSet) -> Activation:
    """The features of all nodes in float64."""
    features = graph.features
    if features.layout != torch.sparse_csr:
        return features.double()
    stored = features.crow_indices().diff()
    return SparseFeatures(
        torch.repeat_interleave(torch.arange(len(stored)), stored),
        features.col_indices().long(),
        features.values().double(),
        (features.shape[0], features.shape[1]),
    )


def rows_of(x: Activation, ids: Tensor) -> Activation:
    """The rows `ids`, int64 [n], ascending where features are stored sparsely."""
    return x[ids] if isinstance(x, Tensor) else x.rows(ids)

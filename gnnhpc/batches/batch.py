"""What one step consumes: a mini-batch of micro-batches, and what their sources have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.node_features import IndexedRows, SparseRows
from gnnhpc.models.model import Context
from gnnhpc.records.schema import Phase

Inputs = Tensor | SparseRows | IndexedRows
SampleIds = np.ndarray[Any, np.dtype[np.int64]]
SPLITS: dict[Phase, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}
"""The splits whose labels a phase needs."""


@dataclass(frozen=True)
class MicroBatch:
    """A slice of a mini-batch."""

    inputs: Inputs | None
    """[rows, ...]; None except on the first stage."""
    targets: Mapping[str, Tensor]
    """The labels of each split that the phase needs, int64 [rows of the output]: `train` in
    training; `test`, and `val` where there is one, in evaluation. For links they are pairs, int64
    [pairs, 3]: two rows of the output, and 1 for a link or 0. Empty except on the loss's stage."""
    context: Context


@dataclass(frozen=True)
class Loading:
    """The time that making one replica's sampled mini-batch takes, in whichever thread."""

    sample_s: float | None
    """Seconds of sampling its edges; None where another process samples them."""
    gather_s: float | None
    """Seconds of copying its features together; None where nothing copies them."""
    edges: int
    """The number of sampled edges, without self-loops."""


@dataclass(frozen=True)
class Batch:
    """One replica's mini-batch on this process."""

    microbatches: tuple[MicroBatch, ...]
    valid_targets: int
    """The rows with a label, or pairs, over all replicas: the step's loss is the mean over them."""
    samples: int
    """This replica's images, links, graphs, or nodes that its chunks own."""
    epoch: int
    sample_ids: SampleIds
    """The numbers of the samples in their split: nodes that the chunks own, or places among the
    nodes, links or graphs to train on."""
    checksum: int
    """CRC-32 of inputs and labels; equal on all stages."""
    loading: Loading | None = None
    """None where mini-batches are not sampled."""


@dataclass(frozen=True)
class BatchPlan:
    """What every source of mini-batches is built from."""

    experiment: Experiment
    layer_specs: LayerSpecs
    mesh: Mesh
    root: Path | None
    """The data root."""

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.experiment.dtype)
        return found

    @property
    def replica_slice(self) -> slice:
        """The numbers of this replica's micro-batches among those of all replicas."""
        first = self.mesh.replica * self.experiment.microbatches
        return slice(first, first + self.experiment.microbatches)

    def shape_after(self, index: int, rows: int) -> tuple[int, ...]:
        """The shape of an activation of `rows` rows after layer `index`; -1 is the input."""
        layer = self.layer_specs[max(index, 0)]
        return (rows, *(layer.inputs if index < 0 else layer.shape))

    def context(self, microbatch: int, step: int, graph: Any = None) -> Context:
        """The context of one micro-batch, with its chunk where there is one."""
        return Context(microbatch, step, self.experiment.seed, graph)


class Batches:
    """The source of one replica's mini-batches, by phase and step."""

    plan: BatchPlan
    samples: int
    """A replica's samples in each step."""
    total_samples: int
    """The samples of the training data."""
    steps_per_epoch: int
    """The training steps in which each sample comes at most once."""
    fixed_rows = True
    """Whether all micro-batches have the same number of rows; else making a mini-batch is part of
    its step."""

    def shape_after(self, index: int) -> tuple[int, ...]:
        """The shape of a micro-batch's activation after layer `index`; -1 is the input.

        The rows are 0 where they differ from step to step.
        """
        return self.plan.shape_after(index, 0)

    def example(self) -> MicroBatch:
        """A training micro-batch with its targets, to profile layers with; on first stages only."""
        raise NotImplementedError

    def open(
        self, phase: Phase, start: int, stop: int
    ) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        """An iterator over the mini-batches of steps `start` to `stop`."""
        raise NotImplementedError

    def graph_metadata(self) -> dict[str, Any]:
        """How the graph is cut or sampled, for the record; empty for images."""
        return {}

    def check_enough(self, found: int, samples: str) -> None:
        """Raises InputError where a step of all replicas takes more samples than are found."""
        replicas = self.plan.mesh.layout.replicas
        if self.samples * replicas > found:
            where = f"data {self.plan.experiment.data.name}"
            asked = f"{self.samples} x {replicas} replicas"
            raise InputError(where, "batch_size", asked, f"at most the {found} {samples}")

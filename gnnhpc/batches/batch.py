"""What one step consumes: a mini-batch of micro-batches, and the protocol of their sources."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

Inputs = Tensor | SparseRows | IndexedRows
SampleIds = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class MicroBatch:
    """A slice of a mini-batch.

    `inputs` [rows, ...] are None except on the first stage. `targets` has the labels of each split
    that the phase needs, int64 [rows of the output]: `train` in training; `test`, and `val` where
    there is one, in evaluation. Of links it has pairs, int64 [pairs, 3]: two rows of the output,
    and 1 for a link or 0. It is empty except on the stage of the loss.
    """

    inputs: Inputs | None
    targets: Mapping[str, Tensor]
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
    labelled: int
    """Labelled rows over all replicas, or pairs: the loss of this step is the mean over them."""
    samples: int
    """This replica's: images, links, or nodes that its chunks own."""
    epoch: int
    sample_ids: SampleIds
    """Numbers of the samples in their split; of a graph the nodes that the chunks own, of a sampled
    one their places among the nodes or links to train on."""
    checksum: int
    """Of inputs and labels; must be equal on all stages."""
    loading: Loading | None = None
    """Of a sampled mini-batch."""


class Batches(Protocol):
    """Where the batches of one replica come from, by phase and step."""

    samples: int
    """A replica's, a step."""
    total_samples: int
    """Of the training data, to count how often each sample is used."""
    steps_per_epoch: int
    """Training steps in which each sample comes at most once."""
    fixed_rows: bool
    """Whether all micro-batches have as many rows."""
    drawn: bool
    """Whether making a mini-batch is part of its step."""

    def shape_after(self, index: int) -> tuple[int, ...]:
        """Of one micro-batch's activation after layer `index`; -1 is the input."""
        ...

    def example(self) -> MicroBatch:
        """A training micro-batch with its targets, to profile layers with; on first stages only."""
        ...

    def open(self, phase: Phase, start: int, stop: int) -> contextlib.AbstractContextManager[Any]:
        """An iterator over the batches of steps `start` to `stop`."""
        ...

    def graph_facts(self) -> dict[str, Any]:
        """What cutting the graph cost, for the record; empty for images."""
        ...

"""What samplers of mini-batches give, ours and the libraries'."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from gnnhpc.batches.batch import Inputs
from gnnhpc.batches.chunk_batches import copied_rows
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.shuffle import Share, Shares
from gnnhpc.experiment.sampling import Semantics
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.halves import computed_dtype
from gnnhpc.graphs.indexed_rows import IndexedRows


@dataclass(frozen=True)
class Drawn:
    """One replica's mini-batch of a step."""

    share: Share
    chunks: tuple[GraphChunk, ...]
    """One a micro-batch."""
    edges: int
    """Self-loops aside."""
    sample_s: float | None
    """Seconds of sampling its edges; None where another process samples them."""
    inputs: tuple[Inputs, ...] | None = None
    """Features of the chunks; None where they are still to be gathered."""
    gather_s: float | None = None
    """Seconds of copying them together."""


class Draws(Protocol):
    """A sampler with the threads or processes that draw in advance."""

    def open(
        self, shares: Shares, steps: range
    ) -> contextlib.AbstractContextManager[Iterator[Drawn]]:
        """The mini-batches of these steps, in order; nothing runs after the context."""
        ...


def gathered(graph: Graph, chunks: tuple[GraphChunk, ...], plan: BatchPlan) -> tuple[Inputs, ...]:
    """The features of each chunk's rows, copied together unless the model reads them in place."""
    return tuple(features_of(graph, chunk, plan) for chunk in chunks)


def features_of(graph: Graph | GraphSet, chunk: GraphChunk, plan: BatchPlan) -> Inputs:
    """Those of a chunk's rows, as the model's first layer takes them."""
    features, model = graph.features, plan.experiment.model.loaded
    in_place = features.layout == torch.strided and computed_dtype(features) == plan.dtype
    if in_place and plan.mesh.device.type == "cpu" and model.reads_in_place:
        return IndexedRows(features, chunk.nodes)
    return copied_rows(graph, chunk, plan)


def edges_of(chunks: tuple[GraphChunk, ...], semantics: Semantics = "resample") -> int:
    """How many edges were drawn for these chunks, self-loops aside.

    Drawn once, all are in the first layer, and other layers have some of the same.
    """
    layers = slice(1) if semantics == "once" else slice(None)
    return sum(block.neighbour_count for chunk in chunks for block in chunk.blocks[layers])

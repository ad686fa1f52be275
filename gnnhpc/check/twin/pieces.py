"""What the twin computes on: the micro-batches of a step, from the raw data by the written rules.

An epoch is one permutation of the samples, drawn from (seed, epoch); it is cut into global
mini-batches, these into replicas, these into micro-batches. A graph is one piece, whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.batches.batch import Inputs
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.check.capture import SeenEdges
from gnnhpc.check.plain.shares import PlainShares, evaluated_nodes
from gnnhpc.check.twin.drawn_chunk import drawn_chunk
from gnnhpc.check.twin.scene import SparseInput, TwinGraph
from gnnhpc.core.facts import SPLITS
from gnnhpc.core.layer_specs import LayerSpecs, hops
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import EVALUATED_STEP
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.partition import metis_clusters
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """One forward pass's input and targets."""

    inputs: Tensor | SparseInput
    """[rows, ...], float64 with the values that the run's precision has."""
    targets: Mapping[str, Tensor]
    """int64 [rows of the output] by split, IGNORED where a row is not counted; or pairs of links,
    [pairs, 3]: two rows, and 1 for a link or 0."""
    replica: int = 0
    microbatch: int = 0
    ids: Tensor | None = None
    """A graph's node numbers, int64 [rows], -1 for padding; None for images."""
    graph: TwinGraph | None = None
    sampled: tuple[TwinGraph, ...] = ()
    """Of a sampled mini-batch in place of `graph`: the edges of each layer that uses neighbours,
    the input's first, all between the same rows."""
    pooled: Tensor | None = None
    """Of many small graphs, as `Scene` has it."""
    context: Context | None = None
    """As the run's layers get it, for a model that is its own twin."""
    own_inputs: Inputs | None = None
    """As the run's first layer gets them, where a model that is its own twin takes other ones."""


def image_pieces(
    experiment: Experiment, pixels: Pixels, labels: Labels, phase: Phase, step: int
) -> list[Piece]:
    """All micro-batches of all replicas; `pixels` uint8 [N, channels, H, W] of the right split."""
    assert experiment.batch_size is not None
    size, replicas = experiment.batch_size, experiment.layout.replicas
    together = size * replicas
    epoch, number = divmod(step, len(labels) // together)
    order = np.random.default_rng([experiment.seed, epoch]).permutation(len(labels))
    numbers = order[number * together :][:together]
    exact = np.dtype(experiment.dtype).type
    pieces = []
    for place, rows in enumerate(np.split(numbers, replicas * experiment.microbatches)):
        replica, microbatch = divmod(place, experiment.microbatches)
        planes = pixels[rows].reshape(len(rows), pixels.shape[1], -1)
        values = (planes.astype(exact) / exact(255)).astype(np.float64)
        pieces.append(
            Piece(
                torch.from_numpy(values).transpose(1, 2),
                {phase: torch.from_numpy(labels[rows])},
                replica,
                microbatch,
                context=Context(microbatch, step, experiment.seed),
            )
        )
    return pieces


def graph_piece(experiment: Experiment, graph: Graph) -> Piece:
    """The whole graph, without the edges that the experiment's chunks lose."""
    nodes = len(graph.labels)
    source, target = graph.edges
    number = torch.arange(len(source))
    if experiment.chunks != "halo":
        owner = torch.from_numpy(_owners(experiment, graph))
        kept = owner[source] == owner[target]
        source, target, number = source[kept], target[kept], number[kept]
    node = torch.arange(nodes)
    loops = graph.edges.shape[1] + node
    return Piece(
        graph_inputs(graph, experiment.dtype),
        {split: torch.where(mask, graph.labels, IGNORED) for split, mask in graph.masks.items()},
        ids=node,
        graph=TwinGraph(
            nodes,
            torch.cat((source, node)),
            torch.cat((target, node)),
            torch.cat((number, loops)),
        ),
    )


def chunk_pieces(
    experiment: Experiment,
    outlines: LayerSpecs,
    graph: Graph,
    step: int,
    drawn: Mapping[tuple[int, int], SeenEdges] | None = None,
) -> list[Piece]:
    """The run's own chunks, for a model that is its own twin; `drawn` if a library drew edges."""
    chunks = _chunks_of(experiment, outlines, graph, step, drawn)
    dtype: torch.dtype = getattr(torch, experiment.dtype)
    pieces = []
    for place, chunk in enumerate(chunks):
        replica, microbatch = divmod(place, experiment.microbatches)
        rows = feature_rows(graph.features, chunk.nodes, dtype)
        if not (isinstance(rows, Tensor) or experiment.model.loaded.sparse_inputs):
            rows = rows.to_dense()
        dense = rows if isinstance(rows, Tensor) else rows.to_dense()
        pieces.append(
            Piece(
                dense.double(),
                chunk.targets,
                replica,
                microbatch,
                ids=chunk.nodes,
                context=Context(microbatch, step, experiment.seed, chunk),
                own_inputs=rows,
            )
        )
    return pieces


def _chunks_of(
    experiment: Experiment,
    outlines: LayerSpecs,
    graph: Graph,
    step: int,
    drawn: Mapping[tuple[int, int], SeenEdges] | None,
) -> Sequence[GraphChunk]:
    sampling, seed = experiment.sampling, experiment.seed
    if sampling is None:
        count = experiment.total_chunks
        return build_chunks(graph, count, experiment.chunks, hops(outlines)).chunks
    train, val, test = (graph.masks[split].numpy() for split in SPLITS)
    replicas = range(experiment.layout.replicas)
    if step == EVALUATED_STEP:
        seeds = [evaluated_nodes(experiment, val, test, replica) for replica in replicas]
    else:
        shares = (PlainShares.of(experiment, np.flatnonzero(train), each) for each in replicas)
        seeds = [share.nodes(step) for share in shares]
        if sampling.inductive:
            graph = graph.among(graph.masks["train"])
    if drawn is not None:
        return [
            drawn_chunk(graph, part, drawn[replica, microbatch].layers)
            for replica, parts in enumerate(seeds)
            for microbatch, part in enumerate(parts)
        ]
    sampler = GraphSampler(
        graph, sampling.fanouts, seed, semantics=sampling.semantics, replace=sampling.replace
    )
    return [sampler.chunk(torch.from_numpy(part), step) for each in seeds for part in each]


def graph_inputs(graph: Graph | GraphSet, dtype: str) -> Tensor | SparseInput:
    """All nodes' features in float64, rounded as the run's precision rounds them."""
    features, exact = graph.features, getattr(torch, dtype)
    if features.layout != torch.sparse_csr:
        return features.to(exact).double()
    stored = features.crow_indices().diff()
    rows = torch.repeat_interleave(torch.arange(len(stored)), stored)
    return SparseInput(
        rows,
        features.col_indices().long(),
        features.values().to(exact).double(),
        (features.shape[0], features.shape[1]),
    )


def _owners(experiment: Experiment, graph: Graph) -> Labels:
    """Which chunk owns which node: consecutive ranges, or METIS's clusters."""
    nodes, count = len(graph.labels), experiment.total_chunks
    if experiment.chunks == "contiguous":
        return np.arange(nodes) * count // nodes
    source, target = graph.edges.numpy()
    indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=nodes))))
    return metis_clusters(indptr, source, count)

"""Compares the edges of the chunks that a run trains on with the graph that its loader gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.data.load_graph import load_graph
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.records.schema import Check
from gnnhpc.validation.verdicts import on_all_ranks, verdict_of

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Counted:
    """What one rank counted in its chunks."""

    faults: list[str]
    kept: int
    """Edges of the last layer that uses neighbours, without self-loops."""
    total: int
    """Edges of the graph."""


def check_chunks(
    experiment: Experiment, batches: ChunkBatches, root: Path | None, mesh: Mesh
) -> Check:
    """Count the edges in the chunks of all ranks; a collective.

    In `halo` chunks each computed row must have the whole graph's in-degree in every layer. In
    others it must have all edges from nodes of the chunk.
    """
    everyone = on_all_ranks(mesh, lambda: _count(experiment, batches, root))
    faults = [f"rank {rank}: {each}" for rank, one in enumerate(everyone) for each in one.faults]
    first_stages = [everyone[rank] for rank in mesh.layout.replica_ranks(0)]
    share = sum(one.kept for one in first_stages) / max(1, everyone[0].total)
    detail = f"{experiment.chunks} chunks have the graph's degrees and {share:.1%} of its edges"
    return verdict_of("chunks", faults, detail, values={"edges_kept": share})


def _count(experiment: Experiment, batches: ChunkBatches, root: Path | None) -> _Counted:
    graph = load_graph(experiment.data, root)
    counted = _Counted([], 0, graph.edges.shape[1])
    kept = 0
    with batches.open("train", 0, 1) as opened:
        for number, microbatch in enumerate(next(iter(opened)).microbatches):
            chunk = microbatch.context.chunk
            causes = _wrong_degrees(graph, chunk, halo=experiment.chunks == "halo")
            counted.faults.extend(f"chunk {number} {cause}" for cause in causes)
            if chunk.present_blocks:
                kept += int((chunk.present_blocks[-1].edge < counted.total).sum())
    return _Counted(counted.faults, kept, counted.total)


def _wrong_degrees(graph: Graph, chunk: GraphChunk, *, halo: bool) -> Iterator[str]:
    """The first row of each layer that has another number of edges than its node."""
    nodes = chunk.nodes.cpu().numpy()
    source, target = graph.edges.numpy()
    if not halo:
        inside = np.zeros(graph.nodes, np.bool_)
        inside[nodes[nodes >= 0]] = True
        target = target[inside[source] & inside[target]]
    degrees: Ids = np.bincount(target, minlength=graph.nodes)
    for layer, block in enumerate(chunk.present_blocks):
        computed = nodes[: block.rows_out]
        # Each row has a self-loop, but padding has no edge.
        expected = np.where(computed >= 0, 1 + degrees[computed], 0)
        actual = np.diff(block.indptr.cpu().numpy())
        wrong = np.flatnonzero(actual != expected)
        if len(wrong):
            row = int(wrong[0])
            yield (
                f"has {actual[row]} edges into node {computed[row]} in layer {layer}, "
                f"{expected[row]} are the graph's"
            )

"""Compares the edges of the chunks of a graph with the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.data.load_graph import load_graph
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.records.schema import Check
from gnnhpc.validation.reference.random_numbers import Ids
from gnnhpc.validation.verdicts import on_all_ranks, verdict_of


def check_chunks(
    experiment: Experiment, batches: Batches, root: Path | None, mesh: Mesh
) -> list[Check]:
    """Compare the edges in the chunks of all ranks with the graph that the loader gives.

    In `halo` chunks each computed row must have the whole graph's in-degree in every layer. In
    others it must have all edges from nodes of the chunk. A collective; an empty list where
    mini-batches are not chunks.
    """
    if not isinstance(batches, ChunkBatches):
        return []

    def count() -> tuple[list[str], int, int]:
        """What is wrong; edges of the last layer that uses neighbours; edges of the graph."""
        graph, faults, kept = load_graph(experiment.data, root), list[str](), 0
        edges = graph.edges.shape[1]
        with batches.open("train", 0, 1) as opened:
            for number, microbatch in enumerate(next(iter(opened)).microbatches):
                chunk = microbatch.context.chunk
                causes = _wrong_degrees(graph, chunk, halo=experiment.chunks == "halo")
                faults.extend(f"chunk {number} {cause}" for cause in causes)
                if chunk.present_blocks:
                    kept += int((chunk.present_blocks[-1].edge < edges).sum())
        return faults, kept, edges

    everyone = on_all_ranks(mesh, count)
    known = [f"rank {rank}: {each}" for rank, one in enumerate(everyone) for each in one[0]]
    kept = sum(everyone[rank][1] for rank in mesh.layout.replica_ranks(0))
    share = kept / max(1, everyone[0][2])
    detail = f"{experiment.chunks} chunks have the graph's degrees and {share:.1%} of its edges"
    return [verdict_of("chunks", known, detail)]


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

"""Compares the chunks of a graph that a run trains on with the graph that its loader gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch

from gnnhpc.batches.batch import Inputs, MicroBatch
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.data.load_graph import load_graph
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.node_features import IndexedRows, SparseRows
from gnnhpc.records.schema import Check
from gnnhpc.validation.verdicts import verdict_of

Ids = npt.NDArray[np.int64]
MOST_EDGES = 1 << 25
"""Edges of a layer up to which each of them is compared; of more their numbers are."""
_ROWS_AT_ONCE = 4096


def check_chunks(
    experiment: Experiment, batches: ChunkBatches, root: Path | None, mesh: Mesh
) -> Check:
    """Check the inputs, labels and edges of the chunks of all ranks; a collective.

    Of `halo` chunks each computed row must have the whole graph's in-degree in every layer. Of
    others all edges within a chunk must be there, and the reported share of edges kept must be
    theirs.
    """
    graph = load_graph(experiment.data, root)
    edges = graph.edges.numpy()
    faults, kept = [], 0
    with batches.open("train", 0, 1) as opened:
        for number, microbatch in enumerate(next(iter(opened)).microbatches):
            chunk = microbatch.context.chunk.to("cpu")
            causes = [
                *_wrong_rows(graph, chunk, microbatch),
                *_wrong_edges(graph, chunk, experiment),
            ]
            faults += [f"chunk {number} {cause}" for cause in causes]
            blocks = chunk.present_blocks
            kept += _neighbours(blocks[-1], edges.shape[1]) if blocks else 0
    everyone = mesh.gather_objects((mesh.stage, faults, kept))
    known = [
        f"rank {rank}: {each}" for rank, (_, found, _) in enumerate(everyone) for each in found
    ]
    share = sum(count for stage, _, count in everyone if stage == 0) / max(1, edges.shape[1])
    reported = float(batches.graph_metadata()["edges_kept"])
    if batches.chunkset.chunks[0].blocks and abs(share - reported) > 1e-9:
        known.append(f"chunks keep {share:.4%} of the edges, reported are {reported:.4%}")
    detail = f"{experiment.chunks} chunks have the graph's rows and {share:.1%} of its edges"
    return verdict_of("chunks", known, detail, values={"edges_kept": share})


def _wrong_rows(graph: Graph, chunk: GraphChunk, microbatch: MicroBatch) -> Iterator[str]:
    """Inputs and labels that are not those of the chunk's nodes."""
    nodes = chunk.nodes.cpu().numpy()
    if microbatch.inputs is not None and not _same_inputs(graph, nodes, microbatch.inputs):
        yield "has inputs that are not the features of its nodes"
    own = torch.from_numpy(nodes[: chunk.own])
    for split, targets in microbatch.targets.items():
        labels = graph.labels[own].where(graph.masks[split][own], IGNORED)
        actual = targets.cpu()
        if not torch.equal(actual[: chunk.own], labels) or (actual[chunk.own :] != IGNORED).any():
            yield f"has {split} labels that are not those of its nodes"


def _same_inputs(graph: Graph, nodes: Ids, inputs: Inputs) -> bool:
    """Whether rows are the features of nodes and zeros for padding, in pieces to bound memory."""
    features, rows = _by_rows(graph.features), _by_rows(inputs)
    for begin in range(0, len(nodes), _ROWS_AT_ONCE):
        piece = nodes[begin : begin + _ROWS_AT_ONCE]
        actual, expected = (
            _dense(each)
            for each in (rows[begin : begin + len(piece)], features[np.maximum(piece, 0)])
        )
        expected[piece < 0] = 0.0
        # Stored numbers are exact in the run's precision, or rounded to it once.
        if not np.array_equal(actual, expected.astype(actual.dtype)):
            return False
    return True


def _by_rows(x: Inputs) -> Any:
    """Rows as numpy or scipy can index them; those of a graph on a device are its features."""
    if isinstance(x, IndexedRows):
        return _by_rows(x.to_dense())
    if isinstance(x, SparseRows):
        arrays = (x.values, x.columns, x.indptr)
        shape = (len(x.indptr) - 1, x.width)
    elif x.layout == torch.sparse_csr:
        arrays = (x.values(), x.col_indices(), x.crow_indices())
        shape = (x.shape[0], x.shape[1])
    else:
        return x.detach().cpu().numpy()
    return scipy.sparse.csr_array(tuple(each.cpu().numpy() for each in arrays), shape=shape)


def _dense(rows: Any) -> npt.NDArray[Any]:
    return rows.toarray() if isinstance(rows, scipy.sparse.csr_array) else np.array(rows)


def _wrong_edges(graph: Graph, chunk: GraphChunk, experiment: Experiment) -> Iterator[str]:
    nodes = chunk.nodes.cpu().numpy()
    degrees = np.bincount(graph.edges[1].numpy(), minlength=graph.nodes)
    within = None if experiment.chunks == "halo" else _edges_within(graph, nodes)
    for layer, block in enumerate(chunk.present_blocks):
        entering = nodes[: chunk.rows[layer]]
        computed = entering[: block.rows_out]
        expected = np.zeros(len(computed), np.int64)
        real = computed >= 0
        expected[real] = 1 + (degrees if within is None else within)[computed[real]]
        actual = np.diff(block.indptr.cpu().numpy().astype(np.int64))
        if not np.array_equal(actual, expected):
            row = int(np.flatnonzero(actual != expected)[0])
            yield (
                f"has {actual[row]} edges into node {computed[row]} in layer {layer}, "
                f"{expected[row]} are the graph's"
            )
        elif len(block.edge) <= MOST_EDGES and not _same_edges(graph, block, entering):
            yield f"has edges in layer {layer} that are not those of the graph"


def _edges_within(graph: Graph, nodes: Ids) -> Ids:
    """In-degree of each node by edges between the nodes of a chunk, int64 [nodes of the graph]."""
    inside = np.zeros(graph.nodes, np.bool_)
    inside[nodes[nodes >= 0]] = True
    source, target = graph.edges.numpy()
    return np.bincount(target[inside[source] & inside[target]], minlength=graph.nodes)


def _same_edges(graph: Graph, block: Block, nodes: Ids) -> bool:
    """Whether each edge is the one of its number, none is double, and self-loops are numbered."""
    total = graph.edges.shape[1]
    source, target, edge = (each.cpu().numpy() for each in (block.source, block.target, block.edge))
    ends = nodes[source], nodes[target]
    loop = edge >= total
    whole_source, whole_target = graph.edges.numpy()
    numbers = edge[~loop]
    rows = np.repeat(np.arange(block.rows_out), np.diff(block.indptr.cpu().numpy()))
    order = np.lexsort((edge, target))
    double = (np.diff(edge[order]) == 0) & (np.diff(target[order]) == 0)
    return bool(
        np.array_equal(target, rows)
        and np.array_equal(whole_source[numbers], ends[0][~loop])
        and np.array_equal(whole_target[numbers], ends[1][~loop])
        and np.array_equal(edge[loop] - total, ends[1][loop])
        and np.array_equal(ends[0][loop], ends[1][loop])
        and not double.any()
    )


def _neighbours(block: Block, total: int) -> int:
    """Edges of a block without its self-loops."""
    return int((block.edge < total).sum())

"""A look at a sampled mini-batch finds a single edge, number or degree that is another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.check.plain.graph import LessEdges, PlainGraph, plain_graph
from gnnhpc.check.watches.sampled_edges import sampled_cause
from gnnhpc.data.graphs import load_graph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.kernels import sample
from tests.tools.cells import sampled

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
STEP = 5
DATA = {"name": "synthetic-citation", "nodes": 3_000, "edges": 30_000, "features": 8}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return sampled(data=DATA, sampling={"fanouts": [4, 3]})


@pytest.fixture(scope="module")
def graph(experiment: Experiment) -> PlainGraph:
    return plain_graph(experiment.data, None)


@pytest.fixture
def chunk(experiment: Experiment) -> GraphChunk:
    """Of far more rows than are drawn again; with its edges by source."""
    assert experiment.sampling is not None
    sampler = GraphSampler(
        load_graph(experiment.data, None), experiment.sampling.fanouts, experiment.seed
    )
    made = sampler.chunk(torch.arange(0, 3_000, 7), STEP)
    for block in made.blocks:
        assert len(block.transpose.edge) == len(block.edge)
    return made


def cause(graph: PlainGraph, chunk: GraphChunk, experiment: Experiment) -> str | None:
    return sampled_cause(graph, chunk, experiment, STEP, random.Random(3))


def with_first(chunk: GraphChunk, block: Block) -> GraphChunk:
    return replace(chunk, blocks=(block, *chunk.blocks[1:]))


def test_nothing_is_found_where_nothing_is_wrong(
    graph: PlainGraph, chunk: GraphChunk, experiment: Experiment
) -> None:
    assert cause(graph, chunk, experiment) is None


def changed(tensor: Tensor, place: int, by: int) -> Tensor:
    other = tensor.clone()
    other[place] += by
    return other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: replace(b, edge=changed(b.edge, -1, -(2**31))), "to itself"),
        (lambda b: replace(b, edge=changed(b.edge, -2, -(2**31))), "does not have"),
        (lambda b: replace(b, source=changed(b.source, -2, -1)), "of other edges"),
    ],
)
def test_the_last_edge_of_many_is_looked_at(
    change: Callable[[Block], Block],
    words: str,
    graph: PlainGraph,
    chunk: GraphChunk,
    experiment: Experiment,
) -> None:
    """As a number that int32 cannot hold, or what a longer block left behind."""
    found = cause(graph, with_first(chunk, change(chunk.blocks[0])), experiment)
    assert found is not None
    assert words in found


@pytest.mark.parametrize("part", ["indptr", "edge", "target"])
def test_each_part_of_the_edges_by_source_is_looked_at(
    part: str, graph: PlainGraph, chunk: GraphChunk, experiment: Experiment
) -> None:
    by = chunk.blocks[0].transpose
    place = len(getattr(by, part)) // 2
    getattr(by, part)[place] += 1
    found = cause(graph, chunk, experiment)
    assert found is not None
    assert "by source than by target" in found
    getattr(by, part)[place] -= 1
    assert cause(graph, chunk, experiment) is None


def test_edges_by_source_that_change_places_are_found(
    graph: PlainGraph, chunk: GraphChunk, experiment: Experiment
) -> None:
    """Two edges of two rows, edge by edge as they are."""
    by = chunk.blocks[0].transpose
    place = int(by.indptr[1])
    for part in (by.edge, by.target):
        part[[place - 1, place]] = part[[place, place - 1]]
    assert "other edges by source" in str(cause(graph, chunk, experiment))


@pytest.mark.parametrize("computed", [True, False])
def test_a_degree_of_another_node_is_found(
    computed: bool, graph: PlainGraph, chunk: GraphChunk, experiment: Experiment
) -> None:
    """Of each row that is computed, and of those that only enter where there are not too many."""
    chunk.degree[chunk.rows[1] - 1 if computed else -1] += 1
    assert "the degree of node" in str(cause(graph, chunk, experiment))


def test_an_edge_that_is_left_out_is_found(
    graph: PlainGraph, chunk: GraphChunk, experiment: Experiment
) -> None:
    """Of a node that has more than are drawn: as many could be drawn without it."""
    block = chunk.blocks[0]
    row = int((chunk.degree[: block.rows_out] > 20).nonzero()[-1])
    number = block.edge[block.indptr[row] : block.indptr[row] + 1].long().numpy()
    less = LessEdges.of(graph, number)
    chunk.degree[row] -= 1
    assert "does not have" in str(cause(less, chunk, experiment))

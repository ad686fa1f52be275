"""Mini-batches of PyG's and DGL's loaders: what was asked for, and the same for every layer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.sampled.dgl_loader import DglLoader
from gnnhpc.batches.sampled.library_loader_base import LibraryLoader
from gnnhpc.batches.sampled.pyg_loader import PygLoader, sampled_hops
from gnnhpc.batches.sampled.training_samples import edges_of
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.models import libraries
from gnnhpc.training.setup import set_up
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import gat
from tests.tools.graphs import dense_graph, make_graph

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
FANOUTS = (4, 3, 2)
SEED, STEP = 7, 12
SAMPLERS = ("pyg", "dgl", "dgl, not fused")


def sampler(
    name: str, graph: Graph, fanouts: tuple[int, ...] = FANOUTS, workers: int = 0
) -> LibraryLoader:
    both: dict[str, Any] = {"fanouts": fanouts, "workers": workers}
    if name == "pyg":
        needs_pyg_sampler()
        return PygLoader(graph, Sampling(sampler="pyg", **both), SEED)
    needs_dgl()
    return DglLoader(graph, Sampling(sampler="dgl", fused=name == "dgl", **both), SEED)


def chunks(
    drawn_by: LibraryLoader, seeds: Sequence[Tensor], first_step: int = STEP
) -> list[GraphChunk]:
    with drawn_by.chunks(seeds, first_step) as found:
        return list(found)


def uneven(graph: Graph) -> list[Tensor]:
    """Mini-batches of 9 nodes, and a last one of 4."""
    order = torch.randperm(graph.nodes, generator=torch.Generator().manual_seed(1))
    return list(order[:40].split(9))


def edges_by_node(chunk: GraphChunk, block: Block, rows: int) -> dict[int, list[int]]:
    """Of the first rows' nodes the edges into each; -1 is padding, without any."""
    nodes = chunk.nodes[:rows].tolist()
    parts = block.edge.split(block.indptr.diff().tolist())[:rows]
    found = {node: sorted(part.tolist()) for node, part in zip(nodes, parts, strict=True)}
    assert not found.pop(-1, None)
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_with_all_neighbours_it_is_a_chunk_with_a_halo(name: str) -> None:
    graph = make_graph(40, 50, features=12, classes=5, seed=3)
    chunksets = [build_chunks(graph, count, "halo", 3) for count in (1, 3)]
    for wanted in (chunk for each in chunksets for chunk in each.chunks):
        seeds = wanted.nodes[: wanted.own].flip(0)
        (found,) = chunks(sampler(name, graph, (99, 99, 99)), [seeds])
        assert found.nodes[: found.own].equal(seeds)
        real = wanted.nodes >= 0
        assert found.nodes.sort().values.equal(wanted.nodes[real].sort().values)
        degree = dict(zip(wanted.nodes.tolist(), wanted.degree.tolist(), strict=True))
        assert found.degree.tolist() == [degree[node] for node in found.nodes.tolist()]
        for split, labels in found.targets.items():
            assert labels[: found.own].equal(wanted.targets[split][: found.own].flip(0))
            assert (labels[found.own :] == IGNORED).all()
        for one, other, rows in zip(found.blocks, wanted.blocks, wanted.rows[1:], strict=True):
            halo = edges_by_node(wanted, other, rows)
            assert edges_by_node(found, one, len(halo)) == halo


def assert_consistent(graph: Graph, chunk: GraphChunk, block: Block) -> None:
    """Its edges are the graph's, under their numbers, and each row's edge to itself its last."""
    nodes = chunk.nodes[: block.rows_out]
    counts = block.indptr.diff()
    assert block.target.equal(torch.repeat_interleave(torch.arange(block.rows_out), counts))
    last = block.indptr[1:] - 1
    assert block.source[last].equal(torch.arange(block.rows_out))
    assert block.edge[last].equal(nodes + graph.edges.shape[1])
    drawn = torch.ones(len(block.edge), dtype=torch.bool)
    drawn[last] = False
    assert len(block.edge) == len(block.source)
    ends = torch.stack((chunk.nodes[block.source], chunk.nodes[block.target]))
    assert graph.edges[:, block.edge[drawn]].equal(ends[:, drawn])
    assert block.neighbours.equal(torch.stack((block.source, block.target))[:, drawn])


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_node_has_as_many_edges_as_asked_for_and_only_the_graphs(name: str) -> None:
    graph = dense_graph()
    degree = torch.bincount(graph.edges[1], minlength=80)
    for chunk in chunks(sampler(name, graph), uneven(graph)):
        for number, block in enumerate(chunk.blocks):
            assert_consistent(graph, chunk, block)
            assert (block.rows_in, block.rows_out) == chunk.rows[number : number + 2]
            # PyG expands a node once, as the first fan-out says of the seeds.
            rows, hop = (chunk.own, 0) if name == "pyg" else (block.rows_out, 2 - number)
            wanted = degree[chunk.nodes[:rows]].clamp(max=FANOUTS[hop])
            assert (block.indptr.diff()[:rows] - 1).equal(wanted)
            assert len(block.edge.unique()) == len(block.edge)
        drawn = torch.cat([block.edge[block.edge < len(graph.edges[0])] for block in chunk.blocks])
        if name == "pyg":
            # Layers use some of the same; DGL draws for each anew.
            neighbours = zip(chunk.blocks, chunk.blocks[1:], strict=False)
            assert all(one.edge[: len(other.edge)].equal(other.edge) for one, other in neighbours)
            assert edges_of((chunk,), "once") == len(drawn.unique())
        else:
            assert edges_of((chunk,), "resample") == len(drawn)


def content(chunk: GraphChunk) -> list[int]:
    blocks = [torch.cat((block.indptr, block.source, block.edge)) for block in chunk.blocks]
    return [int(x) for part in (chunk.nodes, *blocks) for x in part]


@pytest.mark.parametrize("name", SAMPLERS)
def test_workers_give_the_batches_in_order_and_repeat(name: str) -> None:
    graph, own_numbers = dense_graph(), torch.get_rng_state()
    seeds = uneven(graph)
    drawn = {}
    for workers in (0, 1, 2):
        drawn[workers] = chunks(sampler(name, graph, workers=workers), seeds)
        assert len(drawn[workers]) == len(seeds)
        for chunk, batch in zip(drawn[workers], seeds, strict=True):
            assert chunk.nodes[: chunk.own].equal(batch)
            for block in chunk.blocks:
                assert_consistent(graph, chunk, block)
        assert multiprocessing.active_children() == []
    assert own_numbers.equal(torch.get_rng_state())
    assert [content(c) for c in drawn[1]] == [content(c) for c in drawn[2]]
    if name == "pyg":
        assert [content(c) for c in drawn[0]] == [content(c) for c in drawn[1]]
    resumed = chunks(sampler(name, graph, workers=2), seeds[2:], STEP + 2)
    assert [content(c) for c in resumed] == [content(c) for c in drawn[2][2:]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["pyg", "dgl"])
def test_no_two_batches_draw_with_the_same_numbers(name: str, workers: int) -> None:
    """DGL's own workers do: each is forked with the same state."""
    drawn = chunks(sampler(name, dense_graph(), workers=workers), [torch.arange(20)] * 4)
    assert len({tuple(chunk.blocks[-1].edge.tolist()) for chunk in drawn}) == 4


@pytest.mark.parametrize("name", ["pyg", "dgl"])
def test_workers_end_with_it_though_batches_are_left(name: str) -> None:
    graph = dense_graph()
    with sampler(name, graph, workers=2).chunks(uneven(graph) * 20, STEP) as found:
        next(found)
        assert len(multiprocessing.active_children()) == 2
    assert multiprocessing.active_children() == []


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda _: None)
    libraries.check_sampler_is_here("ours")
    for name in ("pyg", "dgl"):
        with pytest.raises(InputError) as error:
            libraries.check_sampler_is_here(name)
        assert str(error.value).startswith(f"sampling: sampler: found {name}, ")
        assert f"make setup-{name}" in str(error.value)
        assert "\n" not in str(error.value)


def test_layers_of_dgl_are_refused_on_a_gpu_by_a_build_without_cuda() -> None:
    """As soon as a rank starts: a login node has no GPU to ask."""
    needs_dgl()
    experiment = gat(model={"name": "gcn", "implementation": "dgl"}, device="gpu")
    with pytest.raises(InputError) as error:
        set_up(experiment, Mesh(Layout(), 0, torch.device("cuda", 0)), None)
    assert str(error.value) == (
        f"model: implementation: found dgl on gpu, where DGL {libraries.DGL_VERSION} is built "
        "without CUDA; allowed: fused or pyg, or device: cpu"
    )


def test_edges_in_another_order_are_refused() -> None:
    """Hops are found from the order in which nodes were expanded."""
    edge_index = torch.tensor([[2, 3, 1], [0, 1, 0]])
    with pytest.raises(ValueError, match="not ordered"):
        sampled_hops(edge_index, 2, 1)

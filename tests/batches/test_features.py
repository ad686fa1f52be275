"""Features of a mini-batch are the same from wherever they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.prefetch import Ring
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features, Where
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.cells import sampled
from tests.tools.graphs import make_graph

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
@pytest.mark.parametrize("where", ["device", "pinned"])
def test_they_are_those_of_its_rows(where: Where, stored: torch.dtype, dtype: str) -> None:
    """Kept and moved as they are stored, and computed with in the run's precision."""
    graph = make_graph(80, 500, sparse=False, seed=3)
    graph = replace(graph, features=graph.features.to(stored))
    experiment = sampled(dtype=dtype)
    mesh = Mesh(Layout(), 0, torch.device("cpu"))
    plan = BatchPlan(experiment, outline(experiment), mesh, None)
    features = Features(graph, plan, where)
    sampler, ring = NeighborSampler(graph, (3, 2), 7), Ring(1)
    for step in range(3):
        seeds = torch.arange(80).split(30)
        memory = ring.lend()
        chunks = tuple(sampler.chunk(part, step, memory=memory) for part in seeds)
        inputs = features.gathered(chunks, memory)
        assert (inputs is None) == (where == "device")
        for given in inputs or ():
            assert isinstance(given, torch.Tensor)
            assert given.dtype == stored
        for chunk, x in zip(chunks, features.on_device(chunks, inputs), strict=True):
            assert isinstance(x, torch.Tensor)
            assert x.equal(graph.features[chunk.nodes].to(plan.dtype))
        del memory, chunks, chunk, inputs, x

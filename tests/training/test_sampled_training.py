"""Sampled training: the same on any number of replicas, with any number of threads, and resumed."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.cells import RunOnce, sampled
from tests.training.same_losses import LIBRARIES, Way, both, invalid, samples

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
Settings = dict[str, Any]
SAGE: Settings = {"model": {"name": "sage", "layers": 2}}
GAT: Settings = {"model": {"name": "gat"}}
GCN: Settings = {"model": {"name": "gcn"}}
TRAIN = {"train_steps": 9, "dtype": "float64"}
"""Of 35 nodes to train on: two steps are an epoch, the second of fewer nodes."""
DP2 = {"layout": "dp2", "batch_size": 12}
LARGER: Settings = {
    "data": {"name": "synthetic-citation", "nodes": 400, "edges": 4_000, "features": 32}
}


def drawn(*fanouts: int, **more: Any) -> Settings:
    return {"sampling": {"fanouts": list(fanouts), **more}}


def few_edges_at_once() -> None:
    """Evaluations go layer by layer above 1,500 edges."""
    from gnnhpc.batches.sampled import sampled_batches
    from gnnhpc.graphs import layerwise

    layerwise.EDGES_AT_ONCE = sampled_batches.EDGES_AT_ONCE = 1_500


def same(settings: Settings, other: Settings, plant: Any = None) -> Way:
    """The same settings with others beside them."""
    return Way(settings, settings | other, plant)


EVALUATED = drawn(4, 4, evaluation="sampled")
INDUCTIVE = drawn(50, 50, inductive=True)
WAYS = {
    "dp3": same(SAGE | drawn(4, 4, semantics="resample"), {"layout": "dp3", "batch_size": 8}),
    "gat dp3": same(GAT | drawn(4, 4, semantics="once"), {"layout": "dp3", "batch_size": 8}),
    "pp2 1f1b": same(GAT | LARGER, {"layout": "pp2", "schedule": "1f1b", "microbatches": 3}),
    "pp2 interleaved": same(
        GAT | LARGER,
        {"layout": "pp2", "schedule": "interleaved", "virtual_stages": 2, "microbatches": 4},
    ),
    "dp2-pp2 zbv": same(
        GAT | LARGER, DP2 | {"layout": "dp2-pp2", "microbatches": 3, "schedule": "zbv"}
    ),
    "dp2-pp2, large": same(
        GAT | LARGER, DP2 | {"layout": "dp2-pp2", "microbatches": 3}, few_edges_at_once
    ),
    "threads": Way(SAGE, SAGE | drawn(4, 3, workers=2) | {"microbatches": 3}),
    "inductive dp2": same(GCN | INDUCTIVE, DP2),
    "evaluated by sampling, dp2": same(GAT | EVALUATED, DP2 | {"microbatches": 3}),
}


@pytest.mark.quick("dp3", "pp2 1f1b")
@pytest.mark.parametrize("name", WAYS)
def test_another_way_learns_the_same(name: str, run_once: RunOnce) -> None:
    """Dropout included, over uneven ends of epochs."""
    way = WAYS[name]
    alone, other = sampled(**TRAIN | way.alone), sampled(**TRAIN | way.other)
    found = both(run_once, alone, other, way, name)
    assert samples(found[0]) == samples(found[1])
    assert len(set(samples(found[0]))) == 2


LIBRARY_CELLS = [
    ("pyg", "once", SAGE, drawn(4, 3, workers=1)),
    ("dgl", "resample", SAGE, drawn(4, 3, workers=1)),
    pytest.param("pyg", "once", GAT, drawn(4, 3, workers=1), marks=pytest.mark.slow),
    # As the study uses it: rows that are numbered afterwards.
    pytest.param("dgl", "resample", SAGE, drawn(4, 3, fused=False), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sampler", "semantics", "model", "sampling"), LIBRARY_CELLS)
def test_the_libraries_samplers_run_in_replicas(
    sampler: str, semantics: str, model: Settings, sampling: Settings, run_once: RunOnce
) -> None:
    LIBRARIES[sampler]()
    sampling = {"sampling": sampling["sampling"] | {"sampler": sampler}}
    model = {"model": model["model"] | {"implementation": sampler}}
    found = run_once(sampled(**DP2 | sampling | model))
    assert not invalid(found)
    assert found.result.experiment["sampling"]["semantics"] == semantics
    steps = [step for rank in range(2) for step in found.steps(rank, "train")]
    assert all(step["sampled_edges"] > 0 for step in steps)
    workers = found.result.experiment["sampling"]["workers"]
    assert {step["sample_s"] is None for step in steps} == {workers > 0}

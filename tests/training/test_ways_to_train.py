"""Graphs, links and sampled nodes: the same in any layout and by any library; and they learn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import GRAPHS, Ran, RunOnce, graphs, linked, sampled
from tests.tools.forked import Plant

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
Settings = dict[str, Any]
LIBRARIES = {"dgl": needs_dgl, "pyg": needs_pyg_sampler}


@dataclass(frozen=True)
class Way:
    """Settings of a cell, and of another one that learns the same."""

    alone: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    plant: Plant | None = None
    """What the other one's ranks do first."""


def invalid(found: Ran) -> list[str]:
    return [f"{c.name}: {c.detail}" for c in found.result.audit if c.verdict == "invalid"]


def both(
    run_once: RunOnce, alone: Experiment, other: Experiment, way: Way, name: str
) -> tuple[Ran, Ran]:
    """Both cells, valid; losses and metrics are the same to rounding in double precision."""
    planted = "whole" if way.plant is None else name
    found = run_once(alone), *run_once.attempts(planted, other, [way.plant])
    for each in found:
        assert set(each.statuses) == {0}, each.err
        assert not invalid(each)
    for phase in ("train", "test"):
        assert found[1].losses(phase) == pytest.approx(found[0].losses(phase), rel=1e-10)
    last = [each.steps(each.cell.experiment.loss_stage, "test") for each in found]
    for one, two in zip(*last, strict=True):
        metrics = [
            {name: value for name, value in step["metrics"].items() if "replica" not in name}
            for step in (one, two)
        ]
        assert metrics[1] == pytest.approx(metrics[0], rel=1e-9)
    return found[0], found[1]


def samples(found: Ran, phase: str = "train") -> list[int]:
    """Of each step, over all replicas."""
    firsts = found.cell.experiment.layout.replica_ranks(0)
    each = [[step["samples"] for step in found.steps(rank, phase)] for rank in firsts]
    return [sum(step) for step in zip(*each, strict=True)]


DP2: Settings = {"layout": "dp2", "batch_size": 12}
DP2_PP2 = DP2 | {"layout": "dp2-pp2"}
ZBV: Settings = {"layout": "pp2", "schedule": "zbv"}


def same(settings: Settings, other: Settings, **more: Any) -> Way:
    """The same settings with others beside them."""
    return Way(settings, settings | other, **more)


# Of 64 graphs to train on three steps are an epoch, the last of 16 graphs.
GRAPH_TRAIN: Settings = {"train_steps": 9, "dtype": "float64"}
# Of 9 graphs to train on the last step has 3, so that some micro-batches are empty.
FEW: Settings = {
    "data": {"name": "synthetic-graphs", "graphs": 12},
    "train_steps": 4,
    "batch_size": 6,
}
GRAPH_WAYS = {
    "micro-batches": same({}, {"microbatches": 3}),
    "dp3": same({}, {"layout": "dp3", "batch_size": 8, "microbatches": 2}),
    "dp2-pp2": same({}, DP2_PP2 | {"microbatches": 2}),
    "pp2 1f1b": same({}, {"layout": "pp2", "microbatches": 3, "schedule": "1f1b"}),
    "pp2 zbv": same({}, ZBV | {"microbatches": 4}),
    "empty micro-batches": same(FEW, {"layout": "dp2", "batch_size": 3, "microbatches": 3}),
    "cut by a profile": same(FEW, {"layout": "pp2", "microbatches": 6, "balance": "profile"}),
    "PyG": same({}, {"model": {**GRAPHS["model"], "implementation": "pyg"}}),
    "DGL": same({}, {"model": {**GRAPHS["model"], "implementation": "dgl"}}),
}

# Of some 250 links six steps are an epoch, the last of fewer links.
LINK_TRAIN: Settings = {
    "data": {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32},
    "train_steps": 7,
    "dtype": "float64",
    "batch_size": 48,
}
TASK: Settings = {"task": {"name": "links", "embedding": 8, "hits": 3, "negatives": 2}}
DEEP: Settings = {
    "model": {"name": "sage", "layers": 3},
    "sampling": {"fanouts": [4, 3, 3]},
}
LINK_WAYS = {
    "dp2-pp2": same({}, DP2_PP2 | {"batch_size": 24, "microbatches": 2}),
    "zbv, whose loss is on the first stage": same(DEEP, ZBV | {"microbatches": 3}),
    "gat": same(TASK | {"model": {"name": "gat"}}, DP2 | {"batch_size": 24}),
}

# Of 35 nodes to train on two steps are an epoch, the second of fewer nodes.
NODE_TRAIN: Settings = {"train_steps": 9, "dtype": "float64"}
SAGE: Settings = {"model": {"name": "sage", "layers": 2}}
GAT: Settings = {"model": {"name": "gat"}}
LARGER = GAT | {
    "data": {"name": "synthetic-citation", "nodes": 400, "edges": 4_000, "features": 32}
}


def drawn(*fanouts: int, **more: Any) -> Settings:
    return {"sampling": {"fanouts": list(fanouts), **more}}


def few_edges_at_once() -> None:
    """Evaluations go layer by layer above 1,500 edges."""
    from gnnhpc.batches.sampled import evaluations

    evaluations.EDGES_AT_ONCE = 1_500


INDUCTIVE = {"model": {"name": "gcn"}} | drawn(50, 50, inductive=True)
INTERLEAVED = {"schedule": "interleaved", "virtual_stages": 2, "microbatches": 4}
DP3: Settings = {"layout": "dp3", "batch_size": 8}
NODE_WAYS = {
    "dp3": same(SAGE | drawn(4, 4, semantics="resample"), DP3),
    "gat dp3": same(GAT | drawn(4, 4, semantics="once"), DP3),
    "pp2 1f1b": same(LARGER, {"layout": "pp2", "schedule": "1f1b", "microbatches": 3}),
    "pp2 interleaved": same(LARGER, {"layout": "pp2"} | INTERLEAVED),
    "dp2-pp2 zbv": same(LARGER, DP2_PP2 | {"microbatches": 3, "schedule": "zbv"}),
    "dp2-pp2, large": same(LARGER, DP2_PP2 | {"microbatches": 3}, plant=few_edges_at_once),
    "threads": same(SAGE, drawn(4, 3, workers=2) | {"microbatches": 3}),
    "inductive dp2": same(INDUCTIVE, DP2),
    "evaluated by sampling, dp2": same(
        GAT | drawn(4, 4, evaluation="sampled"), DP2 | {"microbatches": 3}
    ),
}

KINDS: dict[str, tuple[Callable[..., Experiment], Settings, dict[str, Way]]] = {
    "graphs": (graphs, GRAPH_TRAIN, GRAPH_WAYS),
    "links": (linked, LINK_TRAIN, LINK_WAYS),
    "nodes": (sampled, NODE_TRAIN, NODE_WAYS),
}


@pytest.mark.quick("graphs: dp2-pp2", "links: dp2-pp2", "nodes: dp3", "nodes: pp2 1f1b")
@pytest.mark.parametrize("name", [f"{kind}: {way}" for kind in KINDS for way in KINDS[kind][2]])
def test_another_way_learns_the_same(name: str, run_once: RunOnce) -> None:
    """Dropout included, over uneven ends of epochs; and an evaluation counts everything once."""
    make, train, ways = KINDS[name.partition(": ")[0]]
    way = ways[name.partition(": ")[2]]
    if way.other.get("model", {}).get("implementation") == "dgl":
        needs_dgl()
    found = both(run_once, make(**train | way.alone), make(**train | way.other), way, name)
    assert len(set(samples(found[0]))) == 2
    for phase in ("train", "test"):
        assert samples(found[0], phase) == samples(found[1], phase)


@pytest.mark.slow
def test_graphs_and_links_are_learnt(run_once: RunOnce) -> None:
    """Far better than chance on what it was not trained on, which is 0.5."""
    many = {"name": "synthetic-graphs", "graphs": 600}
    steps = {"train_steps": 60, "test_every": 60, "test_steps": 1, "optimizer": {"lr": 0.01}}
    found = run_once(graphs(data=many, batch_size=64, **steps))
    assert not invalid(found)
    losses = found.losses()
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert found.result.final["val_accuracy"] + found.result.final["test_accuracy"] > 1.6
    settings = {
        "data": {"name": "synthetic-citation"},
        "model": {"name": "gcn", "dropout": 0.0},
        "sampling": {"fanouts": [10, 10]},
        "task": {"name": "links"},
        "batch_size": 512,
    }
    found = run_once(linked(**settings, **steps | {"train_steps": 120, "test_every": 120}))
    assert not invalid(found)
    assert found.result.final["test_auc"] > 0.8
    assert found.losses()[-1] < 0.6 < found.losses()[0]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"batch_size": 1_000}, "batch_size: found 1000 x 1 replicas; allowed: at most the"),
        ({"task": {"hits": 20}}, "task.hits: found 20; allowed: at most 15, the negatives"),
        ({"task": {"val_share": 1e-6}}, r"task: found \d+ links, of which 0 validate"),
    ],
    ids=range(3),
)
def test_what_a_graph_has_too_few_of_is_one_line(
    changes: Settings, line: str, run_once: RunOnce
) -> None:
    found = run_once(linked(**LINK_TRAIN | changes))
    assert found.statuses == [2]
    (printed,) = found.err[0].splitlines()
    assert re.search(line, printed)


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

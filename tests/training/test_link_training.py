"""Training on links: the same on any layout, resumed, and it learns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.cells import Ran, RunOnce, linked
from tests.training.same_losses import Way, both, invalid, samples

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
DATA = {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32}
TRAIN = {"data": DATA, "train_steps": 14, "dtype": "float64", "batch_size": 48}
"""Of some 250 links: six steps are an epoch, the last of fewer links."""
DP2 = {"layout": "dp2", "batch_size": 24}
TASK = {"task": {"name": "links", "embedding": 8, "hits": 3, "negatives": 2}, "train_steps": 7}
DEEP = {
    "model": {"name": "sage", "layers": 3},
    "sampling": {"fanouts": [4, 3, 3]},
    "train_steps": 6,
}
WAYS = {
    "dp2-pp2": Way({}, {"layout": "dp2-pp2", "batch_size": 24, "microbatches": 2}),
    "zbv, whose loss is on the first stage": Way(
        DEEP, DEEP | {"layout": "pp2", "microbatches": 3, "schedule": "zbv"}
    ),
    "gat": Way(TASK | {"model": {"name": "gat"}}, TASK | DP2 | {"model": {"name": "gat"}}),
}


@pytest.mark.quick("dp2-pp2")
@pytest.mark.parametrize("name", WAYS)
def test_another_way_learns_the_same(name: str, run_once: RunOnce) -> None:
    """Dropout included, over uneven ends of epochs; and all links of an evaluation count once."""
    way = WAYS[name]
    alone, other = linked(**TRAIN | way.alone), linked(**TRAIN | way.other)
    found = both(run_once, alone, other, way, name)
    assert samples(found[0], "test") == samples(found[1], "test")
    metrics = found[0].steps(0, "test")[-1]["metrics"]
    assert set(metrics) == {f"{s}_{k}" for s in ("val", "test") for k in ("auc", "mrr", "hits@3")}


@pytest.mark.slow
def test_links_are_learnt(run_once: RunOnce) -> None:
    """Chance is 0.5."""
    settings = {
        "data": {"name": "synthetic-citation"},
        "model": {"name": "gcn", "dropout": 0.0},
        "sampling": {"fanouts": [10, 10]},
        "task": {"name": "links"},
        "batch_size": 512,
        "train_steps": 120,
        "test_every": 120,
        "test_steps": 1,
        "optimizer": {"name": "adam", "lr": 0.01},
    }
    found = run_once(linked(**settings))
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
)
def test_what_a_graph_has_too_few_of_is_one_line(
    changes: dict[str, Any], line: str, run_once: RunOnce
) -> None:
    assert re.search(line, refused(run_once(linked(**TRAIN | changes))))


def refused(found: Ran) -> str:
    assert found.statuses == [2]
    (line,) = found.err[0].splitlines()
    return line

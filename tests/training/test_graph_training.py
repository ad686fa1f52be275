"""Graph classification: the same in any layout, with any micro-batches, resumed; and it learns."""

from __future__ import annotations

import pytest

from tests.tools.cells import GRAPHS, RunOnce, graphs
from tests.training.same_losses import Way, both, invalid, samples

pytestmark = pytest.mark.distributed
TRAIN = {"train_steps": 9, "dtype": "float64"}
"""Of 64 graphs to train on: three steps are an epoch, the last of 16 graphs."""
FEW = {"data": {"name": "synthetic-graphs", "graphs": 12}, "train_steps": 4}
"""Of 9 graphs to train on the last step has 3, so that some micro-batches are empty."""

LAYOUTS = {
    "micro-batches": Way({}, {"microbatches": 3}),
    "dp3": Way({}, {"layout": "dp3", "batch_size": 8, "microbatches": 2}),
    "dp2-pp2": Way({}, {"layout": "dp2-pp2", "batch_size": 12, "microbatches": 2}),
    "pp2 1f1b": Way({}, {"layout": "pp2", "microbatches": 3, "schedule": "1f1b"}),
    "pp2 zbv": Way({}, {"layout": "pp2", "microbatches": 4, "schedule": "zbv"}),
    "empty micro-batches": Way(
        FEW | {"batch_size": 6}, FEW | {"layout": "dp2", "batch_size": 3, "microbatches": 3}
    ),
    "cut by a profile": Way(
        FEW | {"batch_size": 6},
        FEW | {"layout": "pp2", "batch_size": 6, "microbatches": 6, "balance": "profile"},
    ),
    "PyG": Way({}, {"model": {**GRAPHS["model"], "implementation": "pyg"}}),
    "DGL": Way({}, {"model": {**GRAPHS["model"], "implementation": "dgl"}}, needs="dgl"),
}


@pytest.mark.quick("dp2-pp2")
@pytest.mark.parametrize("name", LAYOUTS)
def test_another_way_learns_the_same(name: str, run_once: RunOnce) -> None:
    """Dropout included, over uneven ends of epochs."""
    way = LAYOUTS[name]
    alone, other = graphs(**TRAIN | way.alone), graphs(**TRAIN | way.other)
    found = both(run_once, alone, other, way, name)
    expected = [24, 24, 16] * 3 if not way.alone else samples(found[0])
    assert samples(found[1]) == expected


@pytest.mark.slow
def test_it_learns(run_once: RunOnce) -> None:
    """Far better on graphs it was not trained on than the half that a guess gets."""
    data = {"name": "synthetic-graphs", "graphs": 600}
    steps = {"train_steps": 60, "test_every": 60, "test_steps": 1}
    found = run_once(graphs(data=data, batch_size=64, optimizer={"lr": 0.01}, **steps))
    assert not invalid(found)
    losses = found.losses()
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert found.result.final["val_accuracy"] + found.result.final["test_accuracy"] > 1.6

"""Training on links: the same on any layout, resumed, and it learns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import sample
from tests.tools.cells import Ran, linked, manifest_of, run
from tests.tools.device_paths import as_on_a_device
from tests.tools.stops import stop_after_four_steps
from tests.training.test_sampled_training import invalid, ran

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
DATA = {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32}
TRAIN = {"data": DATA, "train_steps": 14, "dtype": "float64", "batch_size": 48}
"""Of some 250 links: six steps are an epoch, the last of fewer links."""


def same(one: Ran, other: Ran, rank: int = 0) -> None:
    for phase in ("train", "test"):
        assert one.losses(phase) == pytest.approx(other.losses(phase), rel=1e-10)
    last = one.cell.experiment.loss_stage
    told, wanted = one.steps(last, "test")[-1]["metrics"], other.steps(0, "test")[-1]["metrics"]
    told.pop("replica_loss", None)
    assert told == pytest.approx(wanted, rel=1e-9)
    assert set(told) == {f"{s}_{k}" for s in ("val", "test") for k in ("auc", "mrr", "hits@3")}
    assert judged(one) == judged(other)


def judged(found: Ran) -> int:
    """Links that an evaluation counts over all replicas: each once, though all parts have the
    whole pool."""
    layout = found.cell.experiment.layout
    firsts = layout.replica_ranks(0)
    return sum(found.steps(rank, "test")[-1]["samples"] for rank in firsts)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    found = ran(tmp_path_factory.mktemp("seq"), linked(**TRAIN))
    assert not invalid(found)
    return found


@pytest.mark.quick("dp2-pp2-24-2")
@pytest.mark.parametrize(
    ("layout", "batch_size", "microbatches"),
    [
        ("dp3", 16, 1),
        ("dp2-pp2", 24, 2),
        pytest.param("dp2", 24, 1, marks=pytest.mark.slow),
        pytest.param("pp2", 48, 3, marks=pytest.mark.slow),
    ],
)
def test_any_layout_learns_and_judges_what_one_process_does(
    layout: str, batch_size: int, microbatches: int, alone: Ran, tmp_path: Path
) -> None:
    """Dropout included, over uneven ends of epochs: no part sees a link that another predicts."""
    settings = TRAIN | {"layout": layout, "batch_size": batch_size, "microbatches": microbatches}
    together = ran(tmp_path, linked(**settings))
    assert not invalid(together)
    same(together, alone)


@pytest.mark.slow
def test_links_are_judged_on_the_first_stage_where_parts_go_there_and_back(tmp_path: Path) -> None:
    model, sampling = {"name": "sage", "layers": 3}, {"fanouts": [4, 3, 3]}
    settings = TRAIN | {"model": model, "sampling": sampling, "train_steps": 6}
    alone = ran(tmp_path / "seq", linked(**settings))
    pipeline = {"layout": "pp2", "microbatches": 3, "schedule": "zbv"}
    together = ran(tmp_path / "pp2", linked(**settings, **pipeline))
    assert not invalid(together)
    same(together, alone)


def test_a_graph_on_a_device_leaves_a_steps_links_out_too(alone: Ran, tmp_path: Path) -> None:
    found = ran(tmp_path, linked(**TRAIN), plant=as_on_a_device("host", "device"))
    assert not invalid(found)
    assert found.result.graph["graph_on"] == "device"
    for phase in ("train", "test"):
        assert found.losses(phase) == alone.losses(phase)


@pytest.mark.parametrize(
    "model", [{"name": "gcn"}, pytest.param({"name": "gat"}, marks=pytest.mark.slow)]
)
def test_other_models_too(model: dict[str, Any], tmp_path: Path) -> None:
    """Of which one divides by degrees that are less than the graph's where links are predicted."""
    task = {"name": "links", "embedding": 8, "hits": 3, "negatives": 2}
    settings = TRAIN | {"model": model, "task": task, "train_steps": 7}
    one = ran(tmp_path / "seq", linked(**settings))
    other = ran(tmp_path / "dp2", linked(**settings | {"layout": "dp2", "batch_size": 24}))
    assert not invalid(one)
    assert not invalid(other)
    same(other, one)


@pytest.mark.slow
def test_a_resumed_run_learns_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    settings = TRAIN | {"layout": "dp2", "batch_size": 24, "train_steps": 8}
    whole = ran(tmp_path / "whole", linked(**settings))
    (cell,) = manifest_of(tmp_path / "cut", linked(**settings))
    cut = run(tmp_path / "cut", cell, plant=stop_after_four_steps)
    assert cut.result.status == "interrupted"
    resumed = run(tmp_path / "cut", cell)
    assert not invalid(resumed)
    assert resumed.losses() == whole.losses()[cut.result.train_steps :]


@pytest.mark.slow
def test_of_a_large_graph_the_check_takes_a_part(tmp_path: Path) -> None:
    settings = TRAIN | {"layout": "dp2", "batch_size": 24, "task": {"hits": 10}}
    found = ran(tmp_path, linked(**settings), plant=small_check)
    assert not invalid(found)
    (check,) = [each for each in found.result.audit if each.name == "self-check"]
    assert "on 80 of 150 nodes" in check.detail


def small_check() -> None:
    """As of a graph that is really large."""
    from gnnhpc.check import check_slice

    check_slice._node_flops = lambda *_: 1e15  # type: ignore[assignment]
    check_slice.FEWEST_NODES = 80


@pytest.mark.slow
def test_links_are_learnt(tmp_path: Path) -> None:
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
    found = ran(tmp_path, linked(**settings))
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
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    experiment: Experiment = linked(**TRAIN | changes)
    found = ran(tmp_path, experiment)
    assert found.statuses == [2]
    (err,) = found.err[0].splitlines()
    assert re.search(line, err)


def few_edges_at_once() -> None:
    from gnnhpc.batches.sampled import link_evaluation

    link_evaluation.EDGES_AT_ONCE = 400


def test_links_of_a_large_graph_are_learnt_but_not_evaluated(tmp_path: Path) -> None:
    found = ran(tmp_path / "with", linked(**TRAIN), plant=few_edges_at_once)
    assert found.statuses == [2]
    (err,) = found.err[0].splitlines()
    assert re.search("edges: found 5.. of links to train on; allowed: at most 400", err)
    settings = TRAIN | {"test_steps": 0, "test_every": None, "train_steps": 4}
    without = ran(tmp_path / "without", linked(**settings), plant=few_edges_at_once)
    assert not invalid(without)
    assert without.steps(0, "test") == []

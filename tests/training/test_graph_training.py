"""Graph classification: the same in any layout, with any micro-batches, resumed; and it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import GRAPHS, Ran, graphs, manifest_of, run
from tests.tools.dgl import needs_dgl
from tests.tools.stops import stop_after_four_steps
from tests.training.test_sampled_training import invalid

pytestmark = pytest.mark.distributed
TRAIN = {"train_steps": 9, "dtype": "float64"}
"""Of 64 graphs to train on: three steps are an epoch, the last of 16 graphs."""


def ran(root: Path, experiment: Experiment, **options: Any) -> Ran:
    (cell,) = manifest_of(root, experiment)
    return run(root, cell, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One process and one micro-batch, with dropout."""
    found = ran(tmp_path_factory.mktemp("seq"), graphs(**TRAIN))
    assert not invalid(found)
    return found


def test_only_a_step_that_makes_its_mini_batch_says_how_long_that_took(alone: Ran) -> None:
    """What is evaluated was made before the first step."""
    for phase, made in (("train", True), ("test", False)):
        for step in alone.steps(0, phase):
            for name in ("sample_s", "gather_s", "sampled_edges"):
                assert (step[name] is not None) == made, (phase, name)


@pytest.mark.quick("dp2-pp2-2-gpipe", "pp2-3-1f1b")
@pytest.mark.parametrize(
    ("layout", "microbatches", "schedule"),
    [
        ("seq", 3, "gpipe"),
        ("dp2", 1, "gpipe"),
        ("dp3", 2, "gpipe"),
        ("pp2", 3, "1f1b"),
        ("dp2-pp2", 2, "gpipe"),
        ("pp2", 3, "zero-bubble"),
        ("pp2", 4, "zbv"),
        pytest.param("pp2", 4, "interleaved", marks=pytest.mark.slow),
        pytest.param("pp4", 5, "gpipe", marks=pytest.mark.slow),
    ],
)
def test_every_layout_learns_what_one_process_learns(
    layout: str, microbatches: int, schedule: str, alone: Ran, tmp_path: Path
) -> None:
    """Dropout included: to rounding in double precision, over uneven ends of epochs."""
    replicas = int(layout[2]) if layout.startswith("dp") else 1
    settings = {"layout": layout, "microbatches": microbatches, "schedule": schedule}
    if schedule == "interleaved":
        settings["virtual_stages"] = 2
    found = ran(tmp_path, graphs(**TRAIN, **settings, batch_size=24 // replicas))
    assert not invalid(found)
    for phase in ("train", "test"):
        assert found.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)
    experiment = found.cell.experiment
    told = found.steps(experiment.loss_stage, "test")
    for one, other in zip(alone.steps(0, "test"), told, strict=True):
        for name in ("accuracy", "val_accuracy", "test_accuracy"):
            assert one["metrics"][name] == other["metrics"][name]
    ranks = [experiment.layout.rank_of(replica, 0) for replica in range(replicas)]
    samples = [[step["samples"] for step in found.steps(rank, "train")] for rank in ranks]
    assert [sum(each) for each in zip(*samples, strict=True)] == [24, 24, 16] * 3


@pytest.mark.parametrize(
    ("model", "pooling"),
    [
        ("gcn", "sum"),
        ("graphconv", "mean"),
        pytest.param("sage", "sum", marks=pytest.mark.slow),
        pytest.param("gin", "sum", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("features", ["one-hot", pytest.param("degree", marks=pytest.mark.slow)])
def test_every_model_is_its_twin(model: str, pooling: str, features: str, tmp_path: Path) -> None:
    data = {**GRAPHS["data"], "features": features}
    settings = {"model": {"name": model, "pooling": pooling}, "data": data}
    found = ran(tmp_path, graphs(**settings, layout="dp2", batch_size=8, microbatches=2))
    assert not invalid(found)
    assert found.result.valid


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pyg", "dgl"])
def test_the_libraries_learn_the_same(implementation: str, alone: Ran, tmp_path: Path) -> None:
    if implementation == "dgl":
        needs_dgl()
    model = {**GRAPHS["model"], "implementation": implementation}
    found = ran(tmp_path, graphs(**TRAIN, model=model))
    assert not invalid(found)
    assert found.losses() == pytest.approx(alone.losses(), rel=1e-10)


@pytest.mark.slow
def test_micro_batches_may_be_empty_and_stages_be_cut_by_a_profile(tmp_path: Path) -> None:
    """Of 9 graphs to train on the last step has 3, and 3 are evaluated: for 6 micro-batches."""
    data = {"name": "synthetic-graphs", "graphs": 12}
    settings = {"data": data, "train_steps": 4, "dtype": "float64"}
    alone = ran(tmp_path / "seq", graphs(**settings, batch_size=6))
    for name, more in (
        ("dp2", {"layout": "dp2", "batch_size": 3, "microbatches": 3}),
        ("pp2", {"layout": "pp2", "batch_size": 6, "microbatches": 6, "balance": "profile"}),
    ):
        found = ran(tmp_path / name, graphs(**settings, **more))
        assert not invalid(found)
        for phase in ("train", "test"):
            assert found.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)


@pytest.mark.slow
def test_a_resumed_run_learns_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    settings = {**TRAIN, "layout": "dp2", "batch_size": 12}
    whole = ran(tmp_path / "whole", graphs(**settings))
    (cell,) = manifest_of(tmp_path / "cut", graphs(**settings))
    cut = run(tmp_path / "cut", cell, plant=stop_after_four_steps)
    assert cut.result.status == "interrupted"
    resumed = run(tmp_path / "cut", cell)
    assert not invalid(resumed)
    start = cut.result.train_steps
    assert 0 < start < 9
    assert resumed.losses() == whole.losses()[start:]


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    """Far better on graphs it was not trained on than the half that a guess gets."""
    data = {"name": "synthetic-graphs", "graphs": 600}
    steps = {"train_steps": 60, "test_every": 60, "test_steps": 1}
    found = ran(tmp_path, graphs(data=data, batch_size=64, optimizer={"lr": 0.01}, **steps))
    assert not invalid(found)
    losses = found.losses()
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert found.result.final["val_accuracy"] + found.result.final["test_accuracy"] > 1.6

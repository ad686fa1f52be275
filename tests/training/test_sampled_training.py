"""Sampled training: the same on any number of replicas, with any number of threads, and resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.data.graphs import load_graph
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import sample
from tests.tools.cells import SAMPLED, Ran, manifest_of, run, sampled
from tests.tools.data_files import own_arrays
from tests.tools.device_paths import as_on_a_device
from tests.tools.dgl import needs_dgl
from tests.tools.few_edges import few_edges_at_once
from tests.tools.pyg_sampler import needs_pyg_sampler
from tests.tools.stops import stop_after_four_steps

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
SAGE: dict[str, Any] = {"name": "sage", "layers": 2}
GAT: dict[str, Any] = {"name": "gat"}
GCN: dict[str, Any] = {"name": "gcn"}
TRAIN = {"train_steps": 9, "dtype": "float64"}
"""Of 35 nodes to train on: two steps are an epoch, the second of fewer nodes."""


def ran(root: Path, experiment: Experiment, **options: Any) -> Ran:
    (cell,) = manifest_of(root, experiment)
    return run(root, cell, **options)


def invalid(found: Ran) -> list[str]:
    return [f"{c.name}: {c.detail}" for c in found.result.audit if c.verdict == "invalid"]


@pytest.mark.quick("model0-resample")
@pytest.mark.parametrize(
    ("model", "semantics"),
    [
        (SAGE, "resample"),
        (GAT, "once"),
        pytest.param(SAGE, "once", marks=pytest.mark.slow),
        pytest.param(GAT, "resample", marks=pytest.mark.slow),
        pytest.param(GCN, "resample", marks=pytest.mark.slow),
    ],
)
def test_replicas_learn_what_one_process_learns(
    model: dict[str, Any], semantics: str, tmp_path: Path
) -> None:
    """Dropout included: to rounding in double precision, over uneven ends of epochs."""
    settings = {"sampling": {"fanouts": [4, 4], "semantics": semantics}, "model": model, **TRAIN}
    alone = ran(tmp_path / "seq", sampled(**settings))
    assert not invalid(alone)
    for replicas in (2, 3):
        layout = {"layout": f"dp{replicas}", "batch_size": 24 // replicas}
        together = ran(tmp_path / f"dp{replicas}", sampled(**settings, **layout))
        assert not invalid(together)
        for phase in ("train", "test"):
            assert together.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)
        per_step = [
            sum(each) for each in zip(*(
                [step["samples"] for step in together.steps(rank, "train")]
                for rank in range(replicas)
            ), strict=True)
        ]  # fmt: skip
        assert per_step == [step["samples"] for step in alone.steps(0, "train")]
        assert len(set(per_step)) == 2


def test_a_replica_without_a_node_in_the_last_step_has_no_last_loss(tmp_path: Path) -> None:
    """The last mini-batch of an epoch, of 2 nodes for 3 replicas."""
    found = ran(tmp_path, sampled(layout="dp3", batch_size=11, train_steps=4, test_every=None))
    assert [step["samples"] for step in found.steps(0, "train")] == [11, 0, 11, 0]
    assert not invalid(found)
    assert "train_loss" in found.result.final
    assert "train_replica_loss" not in found.result.final


@pytest.mark.quick("pp2-1f1b-None")
@pytest.mark.parametrize(
    ("layout", "schedule", "plant"),
    [
        ("pp2", "1f1b", None),
        ("dp2-pp2", "gpipe", "cut by a profile"),
        ("pp2", "interleaved", None),
        pytest.param("dp2-pp2", "zbv", None, marks=pytest.mark.slow),
        pytest.param("pp4", "gpipe", None, marks=pytest.mark.slow),
        pytest.param("dp2-pp2", "1f1b", "few edges at once", marks=pytest.mark.slow),
    ],
)
def test_stages_that_draw_the_same_learn_what_one_process_learns(
    layout: str, schedule: str, plant: str | None, tmp_path: Path
) -> None:
    """Of micro-batches that have other rows each; and where large graphs are evaluated in turn."""
    data = {"name": "synthetic-citation", "nodes": 400, "edges": 4_000, "features": 32}
    settings = {"data": data, "model": GAT, **TRAIN}
    alone = ran(tmp_path / "seq", sampled(**settings))
    replicas = 2 if layout.startswith("dp2") else 1
    pipeline = {"layout": layout, "schedule": schedule, "microbatches": 3}
    pipeline |= {"batch_size": 24 // replicas}
    if schedule == "interleaved":
        pipeline |= {"virtual_stages": 2, "microbatches": 4}
    if plant == "cut by a profile":
        pipeline |= {"balance": "profile"}
    few = few_edges_at_once if plant == "few edges at once" else None
    together = ran(tmp_path / layout, sampled(**settings, **pipeline), plant=few)
    assert not invalid(together)
    for phase in ("train", "test"):
        assert together.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_threads_and_micro_batches_change_nothing(workers: int, tmp_path: Path) -> None:
    alone = ran(tmp_path / "one", sampled(**TRAIN))
    sampling = SAMPLED["sampling"] | {"workers": workers}
    other = ran(tmp_path / "other", sampled(**TRAIN, sampling=sampling, microbatches=3))
    assert not invalid(other)
    assert other.losses() == pytest.approx(alone.losses(), rel=1e-10)


def only_fresh_memory() -> None:
    """Mini-batches are drawn into memory of their own."""
    from gnnhpc.batches.ring import Ring
    from gnnhpc.kernels.memory import FRESH

    Ring.lend = lambda ring: FRESH  # type: ignore[method-assign]


@pytest.mark.parametrize("layout", ["seq", pytest.param("pp2", marks=pytest.mark.slow)])
def test_buffers_used_again_change_nothing(layout: str, tmp_path: Path) -> None:
    """Evaluations between the steps, which are sampled too."""
    sampling = SAMPLED["sampling"] | {"evaluation": "sampled"}
    settings = {**TRAIN, "sampling": sampling, "test_every": 2, "layout": layout}
    found = ran(tmp_path / "ring", sampled(**settings))
    wanted = ran(tmp_path / "fresh", sampled(**settings), plant=only_fresh_memory)
    assert not invalid(found) + invalid(wanted)
    for phase in ("train", "test"):
        assert found.losses(phase) == wanted.losses(phase)


DENSE = {"name": "reddit-shaped", "nodes": 150, "edges": 1_500, "features": 32, "classes": 5}


@pytest.mark.quick("device-model0-seq-float32")
@pytest.mark.parametrize(
    ("features", "model", "layout", "storage"),
    [
        ("device", SAGE, "seq", "float32"),
        ("pinned", GAT, "dp2", "float16"),
        pytest.param("device", GAT, "dp2", "float16", marks=pytest.mark.slow),
        pytest.param("pinned", SAGE, "seq", "float32", marks=pytest.mark.slow),
        pytest.param("device", SAGE, "pp2", "float16", marks=pytest.mark.slow),
        pytest.param("pinned", GAT, "pp2", "float32", marks=pytest.mark.slow),
    ],
)
def test_features_are_the_same_from_wherever_they_come(
    features: Any, model: dict[str, Any], layout: str, storage: str, tmp_path: Path
) -> None:
    """The ways of a GPU on a CPU: one row after the other from a table, or through buffers."""
    settings = {**TRAIN, "data": DENSE | {"storage": storage}, "model": model, "layout": layout}
    settings |= {"batch_size": 12} if layout == "dp2" else {}
    wanted = ran(tmp_path / "host", sampled(**settings))
    found = ran(tmp_path / "there", sampled(**settings), plant=as_on_a_device(features))
    assert not invalid(wanted) + invalid(found)
    assert wanted.result.graph["features_on"] == "host"
    assert found.result.graph["features_on"] == features
    for phase in ("train", "test"):
        assert found.losses(phase) == pytest.approx(wanted.losses(phase), rel=1e-12)


@pytest.mark.quick("model0-seq-sampling0")
@pytest.mark.parametrize(
    ("model", "layout", "sampling"),
    [
        (SAGE, "seq", {"fanouts": [4, 3]}),
        (GAT, "dp2", {"fanouts": [4, 4], "semantics": "once"}),
        pytest.param(SAGE, "pp2", {"fanouts": [4, 3]}, marks=pytest.mark.slow),
        pytest.param(GCN, "dp2", {"fanouts": [9, 2], "inductive": True}, marks=pytest.mark.slow),
        pytest.param(GAT, "seq", {"fanouts": [4, 3], "replace": True}, marks=pytest.mark.slow),
    ],
)
def test_a_graph_on_a_device_is_drawn_from_alike(
    model: dict[str, Any], layout: str, sampling: dict[str, Any], tmp_path: Path
) -> None:
    """In torch, by the thread that trains: the same mini-batches, and so the same losses."""
    settings = {**TRAIN, "data": DENSE, "model": model, "layout": layout, "sampling": sampling}
    settings |= {"batch_size": 12} if layout == "dp2" else {}
    wanted = ran(tmp_path / "host", sampled(**settings), plant=as_on_a_device("device"))
    there = as_on_a_device("device", "device")
    found = ran(tmp_path / "there", sampled(**settings), plant=there)
    assert not invalid(wanted) + invalid(found)
    facts = ("features_on", "graph_on")
    assert [found.result.graph[fact] for fact in facts] == ["device", "device"]
    for phase in ("train", "test"):
        assert found.losses(phase) == wanted.losses(phase)
    drawn = [[step["sampled_edges"] for step in each.steps(0, "train")] for each in (wanted, found)]
    assert drawn[0] == drawn[1]
    for step in found.steps(0, "train"):
        assert step["data_s"] >= step["sample_s"] + step["gather_s"]


def drawn_wrongly_there() -> None:
    from dataclasses import replace

    from gnnhpc.kernels.sample_torch import TorchSampler

    as_on_a_device("device", "device")()
    true = TorchSampler.draw

    def same(sampler: TorchSampler, layer: sample.Layer, memory: Any) -> sample.Drawn:
        return true(sampler, replace(layer, layer=0), memory)

    TorchSampler.draw = same  # type: ignore[method-assign, assignment]


@pytest.mark.quick("model0")
@pytest.mark.parametrize("model", [GCN, pytest.param(GAT, marks=pytest.mark.slow)])
def test_inductive_training_uses_no_edge_of_other_nodes(
    model: dict[str, Any], tmp_path: Path
) -> None:
    """Degrees and edges' numbers, which GCN's weights and GAT's masks go by, are the part's."""
    sampling = {"fanouts": [50, 50], "inductive": True}
    alone = ran(tmp_path / "seq", sampled(**TRAIN, model=model, sampling=sampling))
    layout = {"layout": "dp2", "batch_size": 12}
    together = ran(tmp_path / "dp2", sampled(**TRAIN, **layout, model=model, sampling=sampling))
    assert not invalid(alone) + invalid(together)
    for phase in ("train", "test"):
        assert together.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)
    graph = load_graph(alone.cell.experiment.data, None)
    train = graph.masks["train"]
    degrees = torch.bincount(graph.edges[1, train[graph.edges].all(0)], minlength=graph.nodes)
    drawn = [step["sampled_edges"] for step in alone.steps(0, "train")]
    # A layer takes no more than all edges into the nodes that it computes.
    assert max(drawn) <= 2 * int(degrees.sum())
    every = sampling | {"inductive": False}
    other = ran(tmp_path / "all", sampled(**TRAIN, model=model, sampling=every))
    assert min(step["sampled_edges"] for step in other.steps(0, "train")) > max(drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inductive"),
    [
        (GAT, True),
        pytest.param(SAGE, False, marks=pytest.mark.slow),
        pytest.param(GCN, True, marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_may_be_sampled(
    model: dict[str, Any], inductive: bool, tmp_path: Path
) -> None:
    """The same in any layout; of all nodes to validate and to test, and not of all edges."""
    sampling: dict[str, Any] = {"fanouts": [4, 4], "evaluation": "sampled", "inductive": inductive}
    settings = TRAIN | {"model": model, "sampling": sampling, "test_every": 3}
    alone = ran(tmp_path / "seq", sampled(**settings))
    assert not invalid(alone)
    for layout, microbatches in (("dp2", 3), ("pp2", 2)):
        size = {"layout": layout, "batch_size": 12 if layout == "dp2" else 24}
        other = ran(tmp_path / layout, sampled(**settings, **size, microbatches=microbatches))
        assert not invalid(other)
        for phase in ("train", "test"):
            assert other.losses(phase) == pytest.approx(alone.losses(phase), rel=1e-10)
    steps = alone.steps(0, "test")
    graph = load_graph(alone.cell.experiment.data, None)
    assert steps[0]["samples"] == int((graph.masks["val"] | graph.masks["test"]).sum())
    drawn = {step["sampled_edges"] for step in steps}
    assert len(drawn) == 1
    whole = ran(
        tmp_path / "whole", sampled(**settings | {"sampling": sampling | {"evaluation": "whole"}})
    )
    assert whole.losses() == alone.losses()
    assert whole.losses("test") != pytest.approx(alone.losses("test"), rel=1e-4)


@pytest.mark.parametrize(
    ("model", "form"),
    [
        (SAGE, {"sampler": "pyg", "trim": False}),
        pytest.param(GCN, {"sampler": "pyg", "trim": False}, marks=pytest.mark.slow),
        pytest.param(GAT, {"sampler": "pyg", "trim": False}, marks=pytest.mark.slow),
        pytest.param(SAGE, {"sampler": "dgl", "fused": False}, marks=pytest.mark.slow),
    ],
)
def test_libraries_may_be_used_as_the_study_did(
    model: dict[str, Any], form: dict[str, Any], tmp_path: Path
) -> None:
    """All rows in every layer, and rows that are numbered after they were drawn."""
    needs_dgl() if form["sampler"] == "dgl" else needs_pyg_sampler()
    settings = {"model": model | {"implementation": form["sampler"]}, "layout": "dp2"}
    sampling = {"fanouts": [4, 3], "workers": 1} | form
    found = ran(tmp_path, sampled(**TRAIN | settings | {"batch_size": 12, "sampling": sampling}))
    assert not invalid(found)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["pyg", "dgl"])
def test_libraries_sample_the_same_part(sampler: str, tmp_path: Path) -> None:
    needs_dgl() if sampler == "dgl" else needs_pyg_sampler()
    sampling = {"fanouts": [50, 50], "sampler": sampler, "inductive": True, "workers": 0}
    found = ran(tmp_path, sampled(**TRAIN, sampling=sampling))
    assert not invalid(found)


@pytest.mark.slow
def test_a_resumed_run_learns_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    settings = {**TRAIN, "layout": "dp2", "batch_size": 12}
    whole = ran(tmp_path / "whole", sampled(**settings))
    (cell,) = manifest_of(tmp_path / "cut", sampled(**settings))
    cut = run(tmp_path / "cut", cell, plant=stop_after_four_steps)
    assert cut.result.status == "interrupted"
    resumed = run(tmp_path / "cut", cell)
    assert not invalid(resumed)
    start = cut.result.train_steps
    assert 0 < start < 9
    assert resumed.losses() == whole.losses()[start:]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize(("sampler", "semantics"), [("pyg", "once"), ("dgl", "resample")])
def test_the_libraries_samplers_run_in_replicas(
    sampler: str, semantics: str, workers: int, tmp_path: Path
) -> None:
    needs_dgl() if sampler == "dgl" else needs_pyg_sampler()
    sampling = {"fanouts": [4, 3], "sampler": sampler, "workers": workers}
    model = {"name": "sage", "layers": 2, "implementation": sampler}
    found = ran(tmp_path, sampled(layout="dp2", batch_size=12, sampling=sampling, model=model))
    assert not invalid(found)
    assert found.result.experiment["sampling"]["semantics"] == semantics
    steps = [step for rank in range(2) for step in found.steps(rank, "train")]
    assert all(step["sampled_edges"] > 0 for step in steps)
    assert {step["sample_s"] is None for step in steps} == {workers > 0}


def test_steps_wait_for_draws_that_take_longer(tmp_path: Path) -> None:
    """However long ranks take between the steps, which a draw that has begun goes on in."""
    found = ran(tmp_path, sampled(**TRAIN, sampling={"fanouts": [4, 3]}), plant=slowly)
    assert not invalid(found)
    steps = found.steps(0, "train")
    assert len(steps) * 0.02 < sum(step["wall_s"] + step["data_s"] for step in steps)


def slowly() -> None:
    """Mini-batches take 20 ms and more to be sampled."""
    from gnnhpc.batches.sampled import own_draws

    true_chunk = own_draws._chunk

    def chunk(*given: Any) -> Any:
        time.sleep(0.02)
        return true_chunk(*given)

    own_draws._chunk = chunk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "replicas", "microbatches"),
    [
        (SAGE, 1, 1),
        (GCN, 2, 1),
        pytest.param(SAGE, 3, 2, marks=pytest.mark.slow),
        pytest.param(GAT, 1, 2, marks=pytest.mark.slow),
        pytest.param(GAT, 3, 1, marks=pytest.mark.slow),
    ],
)
def test_a_large_graph_is_evaluated_layer_by_layer(
    model: dict[str, Any], replicas: int, microbatches: int, tmp_path: Path
) -> None:
    """Here few edges at once: the losses are those of the whole graph at once."""
    data = {"name": "synthetic-citation", "nodes": 400, "edges": 4_000, "features": 32}
    layout = {"layout": f"dp{replicas}" if replicas > 1 else "seq", "batch_size": 24 // replicas}
    settings = {"data": data, "model": model, **layout, "microbatches": microbatches, **TRAIN}
    whole = ran(tmp_path / "whole", sampled(**settings))
    parts = ran(tmp_path / "parts", sampled(**settings), plant=few_edges_at_once)
    assert not invalid(parts)
    (check,) = [check for check in parts.result.audit if check.name == "final-check"]
    assert (check.verdict, "each computed again from what it was" in check.detail) == ("ok", True)
    assert parts.losses("test") == pytest.approx(whole.losses("test"), rel=1e-10)
    for one, other in zip(whole.steps(0, "test"), parts.steps(0, "test"), strict=True):
        assert one["metrics"]["val_accuracy"] == other["metrics"]["val_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [SAGE, GAT, pytest.param(GCN, marks=pytest.mark.slow)])
def test_features_in_half_precision_are_read_as_they_are_kept(
    model: dict[str, Any], tmp_path: Path
) -> None:
    """By us in place, and in double precision from a copy: the same, but for rounding of sums."""
    data = {"name": "reddit-shaped", "nodes": 150, "edges": 1_500, "features": 32, "classes": 5}
    settings = {"model": model, "train_steps": 9, "data": data | {"storage": "float16"}}
    single = ran(tmp_path / "single", sampled(**settings))
    replicas = ran(tmp_path / "dp2", sampled(**settings, layout="dp2", batch_size=12))
    double = ran(tmp_path / "double", sampled(**settings, dtype="float64"))
    whole = ran(tmp_path / "whole", sampled(**settings | {"data": data}, dtype="float64"))
    for each in (single, replicas, double):
        assert not invalid(each)
        assert each.losses("train") == pytest.approx(double.losses("train"), rel=1e-5)
    assert whole.losses("train") != pytest.approx(double.losses("train"), rel=1e-7)


def test_more_nodes_than_there_are_to_train_on_is_one_line(tmp_path: Path) -> None:
    """Of a user's own graph, which planning does not read."""
    np.savez(tmp_path / "g.npz", **own_arrays())
    own = OwnGraph(path="g.npz").planned(tmp_path)
    found = ran(tmp_path / "run", sampled(data=own, layout="dp2", batch_size=15), ranks=2)
    assert set(found.statuses) == {2}
    for err in found.err:
        (line,) = err.splitlines()
        assert "batch_size: found 15 x 2 replicas; allowed: at most the 20 nodes" in line

"""Whole cells on real ranks: every layout and engine computes the same, and records all of it."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from tests.tools.cells import RunOnce, gat, vig

pytestmark = pytest.mark.distributed

# Cells of one family see the same micro-batches, so their losses are the same.
FAMILIES: dict[str, dict[str, Experiment]] = {
    "vig": {
        "seq": vig(),
        "pp2 pipelining gpipe": vig(layout="pp2", spans=True, engine="pipelining"),
        "pp2 native 1f1b": vig(layout="pp2", schedule="1f1b", spans=True),
    },
    "gat in 4 contiguous chunks": {
        "seq": gat(chunks="contiguous"),
        "dp2-pp2 native 1f1b": gat(
            chunks="contiguous", layout="dp2-pp2", microbatches=2, schedule="1f1b"
        ),
    },
    "gat whole": {
        "seq": gat(microbatches=1),
        "seq in 3 with halo": gat(microbatches=3, chunks="halo"),
        # The published cut: two of the four stages have nothing to learn.
        "pp4 with halo": gat(layout="pp4", microbatches=2, chunks="halo", balance=[1, 2, 1, 2]),
    },
}
CELLS = {f"{f} / {name}": cell for f, cells in FAMILIES.items() for name, cell in cells.items()}
every_cell = pytest.mark.parametrize("experiment", CELLS.values(), ids=CELLS)


@every_cell
def test_a_cell_ends_well(run_once: RunOnce, experiment: Experiment) -> None:
    cell = run_once(experiment)
    assert cell.statuses == [0] * experiment.layout.world_size, cell.err
    result = cell.result
    assert result.valid, result.audit
    assert (result.status, result.failure, result.resumed_from) == ("done", None, None)
    assert (result.train_steps, result.test_steps) == (6, 4)
    assert result.experiment == experiment.model_dump(mode="json")
    assert result.layout["balance"] == [len(part) for part in cut(experiment)]
    assert result.provenance["versions"]["torch"]
    transfers = [rank["transfers"] for rank in result.provenance["ranks"]]
    by_network_alone = experiment.engine == "pipelining"
    alone = experiment.layout.stages == 1
    assert set(transfers) == {None if alone else "gloo" if by_network_alone else "shared memory"}


@every_cell
def test_every_rank_records_every_step(run_once: RunOnce, experiment: Experiment) -> None:
    cell, layout = run_once(experiment), experiment.layout
    layers = experiment.model.outline(experiment.data.facts())
    parts = cut(experiment)
    for rank in range(layout.world_size):
        stage = layout.stage_of(rank)
        (header,) = cell.lines(rank, "header")
        assert (header["rank"], header["stage"]) == (rank, stage)
        assert header["replica"] == layout.replica_of(rank)
        assert header["layers"] == [layers[i].name for i in parts[stage]]
        assert header["parameters"] == sum(layers[i].parameters for i in parts[stage])
        train, test = cell.steps(rank, "train"), cell.steps(rank, "test")
        assert [(s["step"], s["warmup"]) for s in train] == [(n, n < 2) for n in range(6)]
        assert [s["step"] for s in test] == list(range(4))
        _check_steps(train, test, last=stage == layout.stages - 1, learns=header["parameters"] > 0)


def _check_steps(
    train: list[dict[str, Any]], test: list[dict[str, Any]], *, last: bool, learns: bool
) -> None:
    for step in train + test:
        assert (step["loss"] is not None) == last
        assert ("accuracy" in step["metrics"]) == last
        own = ("forward_s", "backward_s", "allreduce_s", "optimizer_s")
        assert 0 < step["forward_s"] <= step["wall_s"]
        assert sum(step[name] for name in own) + step["wait_s"] == pytest.approx(
            step["wall_s"], rel=1e-3
        )
        assert sum(f for f, _ in step["groups"].values()) <= step["forward_s"]
    for step in train:
        assert (step["grad_norm"] is not None) == learns
        assert (step["backward_s"] > 0) >= learns
    assert all(step["backward_s"] == 0 and step["grad_norm"] is None for step in test)
    starts = [step["start_s"] for step in train]
    assert starts == sorted(starts)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_metrics_are_the_same_in_every_layout(run_once: RunOnce, family: str) -> None:
    alone = run_once(FAMILIES[family]["seq"])
    assert alone.losses()[-1] < alone.losses()[0], "and something is learnt"
    for name, experiment in FAMILIES[family].items():
        cell = run_once(experiment)
        assert cell.losses() == pytest.approx(alone.losses(), rel=2e-5), name
        assert cell.losses("test") == pytest.approx(alone.losses("test"), rel=1e-4), name
        for metric in ("test_accuracy", "train_loss"):
            expected = pytest.approx(alone.result.final[metric], rel=1e-4)
            assert cell.result.final[metric] == expected, name


def test_replicas_agree_on_the_loss_and_share_the_samples(run_once: RunOnce) -> None:
    chunks = run_once(FAMILIES["gat in 4 contiguous chunks"]["dp2-pp2 native 1f1b"])
    losses = [[s["loss"] for s in chunks.steps(rank, "train")] for rank in (1, 3)]
    assert losses[0] == losses[1]
    first, second = (chunks.steps(rank, "train")[0]["samples"] for rank in (0, 2))
    assert first + second == 150
    audit = {check.name for check in chunks.result.audit}
    made = {"engine-parity", "kernel-parity", "data", "replica parameters", "evaluation"}
    assert made | {"records", "step times", "noisy", "drift"} <= audit


@pytest.mark.parametrize("name", ["pp2 pipelining gpipe", "pp2 native 1f1b"])
def test_spans_of_each_micro_batch_where_asked_for(run_once: RunOnce, name: str) -> None:
    cell = run_once(FAMILIES["vig"][name])
    for rank in range(2):
        spans = cell.lines(rank, "span")
        for kind, phase in (("forward", "train"), ("backward", "train"), ("forward", "test")):
            found = {
                span["microbatch"]
                for span in spans
                if (span["name"], span["phase"], span["step"]) == (kind, phase, 3)
            }
            assert found == {0, 1, 2, 3}
        assert all(0 <= span["start_s"] <= span["end_s"] for span in spans)
    assert run_once(FAMILIES["vig"]["seq"]).lines(0, "span") == []

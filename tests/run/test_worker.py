"""Whole cells on real ranks: every layout and engine computes the same, and records all of it."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.kernels.compile import load_kernel
from tests.tools.cells import Ran, RunOnce, gat, manifest_of, run, vig

pytestmark = pytest.mark.distributed
lossy = functools.partial(gat, chunks="contiguous")

# Cells of one family see the same micro-batches, so their losses are the same.
FAMILIES: dict[str, dict[str, Experiment]] = {
    "vig, batch 8 in 4": {
        "seq": vig(),
        "seq pyg": vig(model=vig().model.model_copy(update={"implementation": "pyg"})),
        "pp2 pipelining gpipe": vig(layout="pp2", spans=True, engine="pipelining"),
        "pp2 native gpipe": vig(layout="pp2", balance=[1, 4]),
        "pp2 native 1f1b": vig(layout="pp2", schedule="1f1b", spans=True),
    },
    "vig, batch 16 in 8": {
        "seq": vig(batch_size=16, microbatches=8),
        "dp2": vig(layout="dp2"),
        "dp2-pp2 pipelining 1f1b": vig(layout="dp2-pp2", schedule="1f1b", engine="pipelining"),
        "dp2-pp2 native gpipe": vig(layout="dp2-pp2"),
    },
    "gat in 4 contiguous chunks": {
        "seq": lossy(),
        "seq pyg": lossy(model={"name": "gat", "implementation": "pyg"}),
        "dp2-pp2 pipelining gpipe": gat(
            chunks="contiguous", layout="dp2-pp2", microbatches=2, engine="pipelining"
        ),
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
CELLS = [(family, name) for family, cells in FAMILIES.items() for name in cells]


QUICK = [
    "vig, batch 8 in 4 / seq",
    "vig, batch 8 in 4 / pp2 pipelining gpipe",
    "vig, batch 8 in 4 / pp2 native 1f1b",
    "gat in 4 contiguous chunks / dp2-pp2 native 1f1b",
    "gat whole / seq",
    "gat whole / seq in 3 with halo",
    "gat whole / pp4 with halo",
]


@dataclass(frozen=True)
class RanCells:
    """Each cell above, run when it is first asked for."""

    run_once: RunOnce

    def __getitem__(self, place: tuple[str, str]) -> Ran:
        family, name = place
        return self.run_once(FAMILIES[family][name])


@pytest.fixture
def ran(run_once: RunOnce) -> RanCells:
    return RanCells(run_once)


every_cell = pytest.mark.parametrize("place", CELLS, ids=" / ".join)


@pytest.mark.quick(*QUICK)
@every_cell
def test_a_cell_ends_well(ran: RanCells, place: tuple[str, str]) -> None:
    cell = ran[place]
    layout = cell.cell.experiment.layout
    assert cell.statuses == [0] * layout.world_size, cell.err
    result = cell.result
    assert result.valid, result.audit
    assert (result.status, result.failure, result.resumed_from) == ("done", None, None)
    assert (result.train_steps, result.test_steps) == (6, 4)
    assert result.experiment == cell.cell.experiment.model_dump(mode="json")
    assert result.layout["balance"] == [len(part) for part in cut(cell.cell.experiment)]
    assert result.samples_per_step == (
        8 * layout.replicas if place[0] == "vig, batch 8 in 4" else result.samples_per_step
    )
    assert result.provenance["versions"]["torch"]


@pytest.mark.quick(*QUICK)
@every_cell
def test_every_rank_records_every_step(ran: RanCells, place: tuple[str, str]) -> None:
    cell = ran[place]
    experiment = cell.cell.experiment
    layout = experiment.layout
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


@pytest.mark.quick(QUICK[0], QUICK[2])
@pytest.mark.parametrize("place", CELLS[:5], ids=" / ".join)
def test_result_and_headers_tell_what_decides_whether_times_may_be_compared(
    ran: RanCells, place: tuple[str, str]
) -> None:
    cell = ran[place]
    provenance = cell.result.provenance
    ranks = range(cell.cell.experiment.layout.world_size)
    assert len(provenance["ranks"]) == len(ranks)
    for rank in ranks:
        (header,) = cell.lines(rank, "header")
        facts = provenance["ranks"][rank]
        assert facts.items() <= header.items()
        assert header["code"] == provenance["code"]
        assert header["versions"] == provenance["versions"]
        assert facts["implementation"] == provenance["implementation"]
        assert facts["threads"] == provenance["threads"]
        assert facts["cpu_model"]
        assert (facts["device"], facts["device_facts"]) == ("cpu", None)
        assert facts["kernels"].keys() <= {"vig_mlp", "attention", "shared_memory_channel"}
        if facts["implementation"].startswith("fused"):
            assert facts["kernels"]


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


@pytest.mark.quick("gat whole")
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_the_same_in_every_layout(ran: RanCells, family: str) -> None:
    alone = ran[family, "seq"].losses()
    assert alone[-1] < alone[0], "and something is learnt"
    for name in FAMILIES[family]:
        assert ran[family, name].losses() == pytest.approx(alone, rel=2e-5), name


@pytest.mark.quick("gat whole")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "vig, batch 16 in 8"])
def test_evaluations_are_the_same_where_running_statistics_are(ran: RanCells, family: str) -> None:
    """Replicas average theirs, so a dp layout's BatchNorm is not that of one process.

    Nor is that of PyG's implementation: a bias before a BatchNorm has a gradient of rounding
    alone, which Adam makes a step of, and the running mean is late to follow.
    """
    alone = ran[family, "seq"]
    for name in FAMILIES[family]:
        if family.startswith("vig") and "pyg" in name:
            continue
        assert ran[family, name].losses("test") == pytest.approx(alone.losses("test"), rel=1e-4)
        for metric in ("test_accuracy", "train_loss"):
            assert ran[family, name].result.final[metric] == pytest.approx(
                alone.result.final[metric], rel=1e-4
            )


def test_replicas_agree_on_the_loss_and_share_the_samples(ran: RanCells) -> None:
    chunks = ran["gat in 4 contiguous chunks", "dp2-pp2 native 1f1b"]
    losses = [[s["loss"] for s in chunks.steps(rank, "train")] for rank in (1, 3)]
    assert losses[0] == losses[1]
    first, second = (chunks.steps(rank, "train")[0]["samples"] for rank in (0, 2))
    assert first + second == chunks.result.samples_per_step == 150


@pytest.mark.parametrize("name", ["pp2 pipelining gpipe", "pp2 native 1f1b"])
def test_spans_of_each_micro_batch_where_asked_for(ran: RanCells, name: str) -> None:
    cell = ran["vig, batch 8 in 4", name]
    for rank in range(2):
        spans = cell.lines(rank, "span")
        for kind, phase in (("forward", "train"), ("backward", "train"), ("forward", "test")):
            found = [
                span["microbatch"]
                for span in spans
                if (span["name"], span["phase"], span["step"]) == (kind, phase, 3)
            ]
            assert sorted(set(found)) == [0, 1, 2, 3]
        assert all(0 <= span["start_s"] <= span["end_s"] for span in spans)
    assert ran["vig, batch 8 in 4", "seq"].lines(0, "span") == []


def test_chunks_say_what_they_kept(ran: RanCells) -> None:
    lossy = ran["gat in 4 contiguous chunks", "seq"].result
    halo = ran["gat whole", "seq in 3 with halo"].result
    assert lossy.graph["edges_kept"] < 1
    assert "edges-lost" in lossy.flags
    assert (halo.graph["edges_kept"], halo.graph["chunks"]) == (1.0, 3)
    assert halo.graph["edge_redundancy"] > 1
    assert "edges-lost" not in halo.flags


def test_every_check_was_made(ran: RanCells) -> None:
    replicas = ran["gat in 4 contiguous chunks", "dp2-pp2 native 1f1b"]
    audit = {check.name for check in replicas.result.audit}
    made = {"engine-parity", "kernel-parity", "data", "replica parameters", "evaluation"}
    assert made | {"records", "step times", "noisy", "drift"} <= audit


def without_kernels(rank: int) -> None:
    """As on a node that has no compiler."""
    if os.environ["RANK"] == str(rank):
        os.environ["GNNHPC_KERNELS"] = "off"
        load_kernel.cache_clear()


@pytest.mark.distributed
@pytest.mark.skipif(load_kernel("attention") is None, reason="no compiler")
def test_a_node_without_a_compiler_makes_the_cell_invalid(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, gat(layout="pp2"))
    ran = run(tmp_path, cell, plant=functools.partial(without_kernels, 1))
    assert ran.statuses == [0, 0]
    assert not ran.result.valid
    (check,) = [check for check in ran.result.audit if check.verdict == "invalid"]
    assert check.name == "same code"
    assert "rank 1 on" in check.detail
    assert "has implementation" in check.detail

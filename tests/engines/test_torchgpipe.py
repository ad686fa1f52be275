"""torchgpipe's GPipe computes what one process computes, whatever it keeps or recomputes."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.figures.timeline import measured_timeline
from analysis.load.run_data import load_run
from analysis.summary.summary_table import summarize
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.engines.libraries.torchgpipe import TorchgpipeEngine
from gnnhpc.experiment.experiment import Experiment
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import RunOnce, gat, manifest_of, run, vig
from tests.tools.data_files import custom_arrays

RESGCN = {"model": {"name": "resgcn", "layers": 3, "hidden": 8, "dropout": 0.5}}
OTHERS = ("never", "except_last")
CASES: dict[str, dict[str, Any]] = {
    # The first stage is dropout alone; 121 nodes do not make equal chunks.
    "gat": {"layout": "pp4", "balance": [1, 2, 1, 2], "chunks": "halo"},
    "resgcn": {"layout": "pp3", **RESGCN},
    "vig": {"layout": "pp2", "batchnorm": "deferred"},
}


def case(name: str, **changes: Any) -> Experiment:
    graph = {"name": "synthetic-citation", "nodes": 121, "edges": 500, "features": 24}
    settings = CASES[name] | changes
    if name.startswith("vig"):
        return vig(**{"dtype": "float64", "batch_size": 12, "microbatches": 3} | settings)
    return gat(**{"dtype": "float64", "data": graph, "microbatches": 3} | settings)


@pytest.mark.parametrize(
    ("name", "checkpoint"), [*((name, "always") for name in CASES), *(("gat", c) for c in OTHERS)]
)
def test_a_step_is_that_of_one_process(name: str, checkpoint: str) -> None:
    alone = step_of(case(name, layout="seq", balance="cost"))
    gpipe = step_of(case(name, engine="torchgpipe", activation_checkpointing=checkpoint))
    assert gpipe.is_to_rounding(alone)
    # Gradients of micro-batches are added in another order, and begin in other memory.
    pairs = zip(gpipe.outputs, alone.outputs, strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_first_partition_may_hand_the_features_on(tmp_path: Path) -> None:
    """As one of dropout alone does where nothing is dropped; the batch stays as it is."""
    np.savez(tmp_path / "dense.npz", **custom_arrays())
    settings: dict[str, Any] = {
        "data": CustomGraph(path="dense.npz").planned(tmp_path),
        "model": {"name": "gat", "dropout": 0.0},
    }
    alone = step_of(case("gat", **settings | {"layout": "seq", "balance": "cost"}))
    settings |= {"engine": "torchgpipe", "activation_checkpointing": "always"}
    parts = parts_of(case("gat", **settings))
    assert take_step(parts).is_to_rounding(alone)
    with parts.batches.open("train", 0, 1) as batches:
        features = [each.inputs for each in next(batches).microbatches]
    assert all(isinstance(x, torch.Tensor) and not x.requires_grad for x in features)


def test_partitions_run_with_the_threads_that_are_set() -> None:
    parts = parts_of(case("gat", engine="torchgpipe"))
    seen: set[tuple[bool, int]] = set()
    # OpenMP's own number: torch's would set it where it is asked.
    threads = ctypes.CDLL(None).omp_get_max_threads
    here = threading.get_ident()
    for part in parts.stage.virtual_stages:
        part.register_forward_pre_hook(
            lambda *_: seen.add((threading.get_ident() == here, threads()))
        )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        take_step(parts)
    finally:
        torch.set_num_threads(before)
    assert seen == {(False, 3)}


@pytest.mark.distributed
def test_replicas_of_pipelines(run_once: RunOnce) -> None:
    """On real ranks, validated."""
    one = gat(
        layout="dp2-pp2", engine="torchgpipe", activation_checkpointing="always", microbatches=2
    )
    alone, gpipe = run_once(gat(layout="dp2", microbatches=2)), run_once(one)
    assert gpipe.statuses == [0, 0], gpipe.err
    result = gpipe.result
    assert result.valid, [check for check in result.audit if check.verdict == "invalid"]
    assert (result.layout["world_size"], result.layout["stages"]) == (2, 2)
    assert gpipe.losses() == pytest.approx(alone.losses(), rel=1e-6)
    assert all(0 < step["recompute_s"] < step["backward_s"] for step in gpipe.steps(0, "train"))
    assert {step["recompute_s"] for step in alone.steps(0, "train")} == {0.0}


def a_device_for_each_stage() -> None:
    """As of several GPUs: to torch cpu and cpu:0 are two devices, which need no copy."""
    from gnnhpc.distributed import devices

    devices.choose_devices = lambda kind, environment, stages: [  # type: ignore[assignment]
        torch.device("cpu"),
        *(torch.device("cpu", stage) for stage in range(stages - 1)),
    ]
    TorchgpipeEngine._wait_for_devices = lambda self: None  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.distributed
def test_stages_on_devices_of_their_own_are_timed_whole(tmp_path: Path) -> None:
    both: dict[str, Any] = {"microbatches": 2, "chunks": "halo", "spans": True}
    other = gat(layout="pp3", engine="torchgpipe", activation_checkpointing="except_last", **both)
    cells = manifest_of(tmp_path, gat(**both), other)
    alone, gpipe = run(tmp_path, cells[0]), run(tmp_path, cells[1], plant=a_device_for_each_stage)
    invalid = [check for check in gpipe.result.audit if check.verdict == "invalid"]
    assert gpipe.statuses == [0], gpipe.err
    assert not invalid
    assert gpipe.losses() == pytest.approx(alone.losses(), rel=1e-6)
    spans = {(s["name"], s["microbatch"]) for s in gpipe.lines(0, "span") if s["phase"] == "train"}
    assert {("forward", None), ("backward", None)} <= spans
    assert {tuple(step["groups"]) for step in gpipe.steps(0, "train")} == {()}
    summary = summarize(load_run(tmp_path)).table.set_index("layout")
    for unknown in ("ideal_step_s", "efficiency", "bubble"):
        assert summary.loc["pp3", unknown].isna().all()
        assert summary.loc["seq", unknown].notna().all()
    assert measured_timeline(load_run(tmp_path), gpipe.cell.id).bubble is None

"""What counts as computing and what as waiting, on real ranks of normal runs."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.tools.cells import Ran, manifest_of, run, vig
from tests.tools.computing import compute

pytestmark = pytest.mark.distributed

PLANTED_S = 0.03
"""Processor time; a step of these cells takes a few milliseconds."""


def slow_rank_1() -> None:
    if os.environ["RANK"] == "1":
        every_rank_slow()


def every_rank_slow() -> None:
    from gnnhpc.engines.stage import Stage

    true = Stage.forward

    def slow(stage: Stage, *args: Any) -> Any:
        compute(PLANTED_S / 4)
        return true(stage, *args)

    Stage.forward = slow  # type: ignore[method-assign]


def all_on_one_processor() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    every_rank_slow()


def busy_transfer_thread() -> None:
    """A thread that uses its processor beside the engine's, as gloo's and a loader's may."""
    data = bytes(2**22)

    def transfer() -> None:
        while True:
            zlib.crc32(data)

    threading.Thread(target=transfer, daemon=True).start()
    every_rank_slow()


def done(root: Path, plant: Any, threads: int = 1, **changes: Any) -> Ran:
    (cell,) = manifest_of(root, vig(train_steps=12, test_steps=0, **changes))
    ran = run(root, cell, plant=plant, env={"GNNHPC_THREADS": str(threads)})
    assert ran.statuses == [0] * cell.experiment.layout.world_size, ran.err
    return ran


def total(ran: Ran, rank: int, name: str) -> float:
    return sum(step[name] for step in ran.steps(rank, "train") if not step["warmup"])


def noisy(ran: Ran) -> str:
    return next((check.detail for check in ran.result.audit if check.name == "noisy"), "")


@pytest.mark.quick("dp2-pp2")
@pytest.mark.parametrize(
    "changes",
    [{"layout": "dp2"}, {"layout": "dp2-pp2"}, {"layout": "dp2-pp2", "engine": "pipelining"}],
    ids=["dp2", "dp2-pp2", "dp2-pp2-torch"],
)
def test_waiting_for_a_slow_replica_is_waiting(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Its peer is neither busy then, nor noisy; the sum of both replicas' times is untouched."""
    ran = done(tmp_path, slow_rank_1, **changes)
    # In dp2 rank 0 is rank 1's replica; in dp2-pp2 rank 3 is, which waits as long.
    peer = 0 if changes["layout"] == "dp2" else 3
    planted = 10 * PLANTED_S
    assert total(ran, 1, "forward_s") > planted
    assert total(ran, peer, "wait_s") > planted / 2
    assert total(ran, peer, "wait_s") > 2 * total(ran, peer, "allreduce_s")
    assert total(ran, peer, "allreduce_s") > 0, "the transfer itself is none"
    for rank in range(ran.cell.experiment.layout.world_size):
        parts = ("forward_s", "backward_s", "optimizer_s", "allreduce_s", "wait_s")
        summed = sum(total(ran, rank, part) for part in parts)
        assert summed == pytest.approx(total(ran, rank, "wall_s"))
    # On a busy machine other processes had the processor; waiting for a replica is no sleep.
    assert "slept" not in noisy(ran)


@pytest.mark.slow
def test_ranks_that_share_a_processor_are_oversubscribed(tmp_path: Path) -> None:
    """What they take from each other is no other process's noise."""
    ran = done(tmp_path, all_on_one_processor, layout="dp2")
    told = {check.name: check.detail for check in ran.result.audit}
    assert "2 threads on 1 CPUs" in told["oversubscribed"]
    for rank in (0, 1):
        compute = sum(total(ran, rank, f"{part}_s") for part in ("forward", "backward"))
        assert total(ran, rank, "cpu_s") < 0.95 * compute


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_other_threads_do_not_count_as_computing(tmp_path: Path, threads: int) -> None:
    """What they use is kept apart, and does not make up for what the computing threads lack."""
    ran = done(tmp_path, busy_transfer_thread, threads, layout="seq")
    compute = sum(total(ran, 0, f"{part}_s") for part in ("forward", "backward", "optimizer"))
    assert 0.0 < total(ran, 0, "cpu_s") <= 1.01 * threads * compute
    assert total(ran, 0, "other_cpu_s") > 0.05 * total(ran, 0, "wall_s")
    used = [step["threads_used"] for step in ran.steps(0, "train") if not step["warmup"]]
    assert set(used) == {threads}


@pytest.mark.slow
def test_what_torchgpipe_does_between_partitions_accuses_nobody(tmp_path: Path) -> None:
    """Nearly a millisecond a micro-batch, which is much of so small a backward."""
    model = {"name": "vig", "blocks": 4, "grapher_width": 3, "ffn_width": 5, "readout_width": 16}
    data = {"name": "synthetic-cifar10", "train": 111, "test": 61, "image_size": 4}
    settings = {"engine": "torchgpipe", "activation_checkpointing": "always", "layout": "pp3"}
    settings |= {"microbatches": 6, "batch_size": 18, "train_steps": 9, "test_steps": 1}
    (cell,) = manifest_of(tmp_path, vig(model=model, data=data, **settings))
    ran = run(tmp_path, cell)
    assert set(ran.statuses) == {0}, ran.err
    (check,) = [each for each in ran.result.audit if each.name == "spans"]
    assert check.verdict == "ok", check.detail


def slow_counters() -> None:
    from gnnhpc.engines import timing

    true = timing.steal_s

    def slow() -> float | None:
        compute(PLANTED_S)
        return true()

    timing.steal_s = slow


@pytest.mark.slow
def test_reading_the_machines_counters_is_in_no_step(tmp_path: Path) -> None:
    """Within a step it would be this rank's processor time, and the other's wait."""
    ran = done(tmp_path, slow_counters, layout="dp2")
    steps = sum(not step["warmup"] for step in ran.steps(0, "train"))
    for rank in (0, 1):
        within = total(ran, rank, "cpu_s") + total(ran, rank, "waiting_cpu_s")
        assert within < steps * PLANTED_S

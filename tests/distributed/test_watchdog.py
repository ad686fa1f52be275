"""The watchdog names the rank that hangs, and nobody while one computes or waits for its disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import watchdog
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.distributed.watchdog import VARIABLE, Watchdog, hang_seconds, watching
from gnnhpc.engines.step_timer import StepTimer
from tests.tools.forked import spawn

BEAT_S = 0.02
PATIENCE_BEATS = 10
Hangs = list[tuple[int, str]]


class FakeStore:
    """What one rank's watchdog sees of a cell's store; other ranks' heartbeats are functions."""

    def __init__(self, *others: Callable[[int], dict[str, object]]) -> None:
        self.values: dict[str, bytes] = {}
        self.others = others
        self.beat = 0

    def set(self, key: str, value: str) -> None:
        self.beat += 1
        self.values[key] = value.encode()
        for rank, other in enumerate(self.others, 1):
            self.values[f"watchdog/{rank}"] = json.dumps(other(self.beat)).encode()

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() == set(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]


def alive(
    beat: int, *, work: int = 0, doing: str = "wait", slow: bool = False
) -> dict[str, object]:
    return {"beat": beat, "work": work, "doing": doing, "slow": slow}


Watch = Callable[..., Hangs]


@pytest.fixture
def timer() -> StepTimer:
    timer = StepTimer(torch.device("cpu"))
    timer.start()
    return timer


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, timer: StepTimer) -> Watch:
    """Runs rank 0's watchdog for so many times its patience; what it reports."""
    monkeypatch.setattr(watchdog, "_EVERY_S", BEAT_S)
    monkeypatch.setenv(VARIABLE, str(PATIENCE_BEATS * BEAT_S))

    def watched(
        store: FakeStore, beats: float = 3.0, during: Callable[[], object] = lambda: None
    ) -> Hangs:
        found: Hangs = []
        watch = Watchdog(
            store, 0, 1 + len(store.others), timer.activity, lambda *hang: found.append(hang)
        )
        end = time.monotonic() + beats * PATIENCE_BEATS * BEAT_S
        while time.monotonic() < end and not found:
            during()
            time.sleep(BEAT_S)
        watch.close()
        return found

    return watched


def in_forward(beat: int) -> dict[str, object]:
    return alive(beat, doing="forward of chunk 3")


def stopped(beat: int) -> dict[str, object]:
    return alive(7, doing="writing a checkpoint", slow=True)


@pytest.mark.parametrize(
    ("mine", "other", "begins", "ends"),
    [
        ("wait", in_forward, "hung: no rank did anything for ", "; it was in forward of chunk 3"),
        ("forward", stopped, "frozen for ", " in writing a checkpoint"),
    ],
    ids=["sleeping", "stopped"],
)
def test_the_rank_is_named(
    mine: Any, other: Any, begins: str, ends: str, watch: Watch, timer: StepTimer
) -> None:
    timer.begin(mine, 0)
    ((rank, why),) = watch(FakeStore(alive, other), beats=4)
    assert rank == 2
    assert why.startswith(begins)
    assert why.endswith(ends)


def test_nobody_is_named_while_a_rank_works_writes_or_computes(
    watch: Watch, timer: StepTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long computation begins and ends no piece of work, but uses the processor."""
    timer.begin("wait")
    assert watch(FakeStore(lambda beat: alive(beat, work=beat))) == []
    timer.end()
    with timer.outside("writing a checkpoint"):
        assert watch(FakeStore(alive)) == []
    monkeypatch.setattr(watchdog, "_BUSY_CPU_S", BEAT_S / 20)
    timer.begin("forward", 0)

    def compute() -> None:
        end = time.monotonic() + BEAT_S
        while time.monotonic() < end:
            math.factorial(200)

    assert watch(FakeStore(alive), during=compute) == []


def test_a_patience_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(InputError, match=f"{VARIABLE}: found 'soon'; allowed: a positive number"):
        hang_seconds()


def hang_of_real_ranks() -> Hangs:
    """Rank 1 sleeps; the others wait for it at a barrier until all watchdogs have reported."""
    watchdog._EVERY_S = 0.2
    mesh = join(read_environment(), Layout(1, 3), torch.device("cpu"))
    timer, found = StepTimer(torch.device("cpu")), Hangs()
    with watching(mesh, timer.activity, lambda *hang: found.append(hang)):
        if mesh.rank == 1:
            with timer.span("backward", 2):
                end = time.monotonic() + 60
                while not found and time.monotonic() < end:
                    time.sleep(0.05)
                time.sleep(4 * watchdog._EVERY_S)
        with timer.span("wait"):
            mesh.barrier()
    leave(mesh)
    return found


@pytest.mark.distributed
def test_all_ranks_name_the_same_one() -> None:
    ranks = spawn(hang_of_real_ranks, 3, env={VARIABLE: "1"})
    assert [[rank for rank, _ in found] for found in ranks] == [[1], [1], [1]]

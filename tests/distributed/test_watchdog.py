"""The watchdog names the rank that hangs, and nobody while one computes or waits for its disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import watchdog
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.distributed.watchdog import VARIABLE, Watchdog, hang_seconds, watching
from gnnhpc.engines.step_timer import StepTimer
from tests.tools.forked import spawn

BEAT_S = 0.02
PATIENCE_BEATS = 10


class FakeStore:
    """What one rank's watchdog sees of a cell's store; other ranks' heartbeats are functions."""

    def __init__(self, *others: Callable[[int], dict[str, object]]) -> None:
        self.values: dict[str, bytes] = {}
        self.others = others
        self.beat = 0
        self.answers = True
        self.is_gone = False

    def set(self, key: str, value: str) -> None:
        if self.is_gone:
            raise RuntimeError("Connection reset by peer")
        while not self.answers:
            time.sleep(BEAT_S)
        self.beat += 1
        self.values[key] = value.encode()
        for rank, other in enumerate(self.others, 1):
            self.values[f"watchdog/{rank}"] = json.dumps(other(self.beat)).encode()

    def wait(self, keys: list[str]) -> None:
        assert self.values.keys() == set(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]


def alive(
    beat: int, *, work: int = 0, doing: str = "wait", slow: bool = False
) -> dict[str, object]:
    return {"beat": beat, "work": work, "doing": doing, "slow": slow}


def verdicts(
    monkeypatch: pytest.MonkeyPatch,
    store: FakeStore,
    timer: StepTimer,
    beats: float = 3.0,
    during: Callable[[], None] | None = None,
) -> list[tuple[int, str]]:
    """What rank 0's watchdog reports within so many times its patience."""
    monkeypatch.setattr(watchdog, "_EVERY_S", BEAT_S)
    monkeypatch.setenv(VARIABLE, str(PATIENCE_BEATS * BEAT_S))
    found: list[tuple[int, str]] = []
    watch = Watchdog(store, 0, 1 + len(store.others), timer, lambda *hang: found.append(hang))
    end = time.monotonic() + beats * PATIENCE_BEATS * BEAT_S
    while time.monotonic() < end and not found:
        if during is not None:
            during()
        time.sleep(BEAT_S)
    watch.close()
    return found


@pytest.fixture
def timer() -> StepTimer:
    timer = StepTimer(torch.device("cpu"))
    timer.start()
    return timer


def test_a_rank_that_sleeps_in_a_layer_is_named(
    monkeypatch: pytest.MonkeyPatch, timer: StepTimer
) -> None:
    timer.begin("wait")
    store = FakeStore(alive, lambda beat: alive(beat, doing="forward of micro-batch 3"))
    ((rank, why),) = verdicts(monkeypatch, store, timer)
    assert rank == 2
    assert why.startswith("hung: no rank did anything for ")
    assert why.endswith("; it was in forward of micro-batch 3")


def test_a_stopped_process_is_named_whatever_it_did(
    monkeypatch: pytest.MonkeyPatch, timer: StepTimer
) -> None:
    timer.begin("forward", 0)
    store = FakeStore(lambda _: alive(7, doing="writing a checkpoint", slow=True))
    ((rank, why),) = verdicts(monkeypatch, store, timer, beats=4)
    assert rank == 1
    assert why.startswith("frozen for ")
    assert why.endswith(" in writing a checkpoint")


@pytest.mark.parametrize("how", ["stopped", "gone"])
def test_a_store_that_does_not_answer_is_rank_0s(
    monkeypatch: pytest.MonkeyPatch, timer: StepTimer, how: str
) -> None:
    store = FakeStore(alive)
    timer.begin("wait")

    def end() -> None:
        if store.beat >= 2:
            store.answers, store.is_gone = how == "gone", how == "gone"

    ((rank, why),) = verdicts(monkeypatch, store, timer, beats=4, during=end)
    store.answers = True
    assert (rank, why.partition(" for ")[0]) == (0, "frozen")


def test_nobody_is_named_while_another_rank_works(
    monkeypatch: pytest.MonkeyPatch, timer: StepTimer
) -> None:
    timer.begin("wait")
    assert verdicts(monkeypatch, FakeStore(lambda beat: alive(beat, work=beat)), timer) == []


def test_a_long_computation_is_no_hang(monkeypatch: pytest.MonkeyPatch, timer: StepTimer) -> None:
    """It begins and ends no piece of work, but uses the processor."""
    monkeypatch.setattr(watchdog, "_BUSY_CPU_S", BEAT_S / 20)
    timer.begin("forward", 0)

    def compute() -> None:
        end = time.monotonic() + BEAT_S
        while time.monotonic() < end:
            math.factorial(200)

    assert verdicts(monkeypatch, FakeStore(alive), timer, during=compute) == []


def test_files_and_loaders_may_take_longer(
    monkeypatch: pytest.MonkeyPatch, timer: StepTimer
) -> None:
    with timer.outside("writing a checkpoint"):
        assert verdicts(monkeypatch, FakeStore(alive), timer) == []


@pytest.mark.parametrize("text", ["soon", "0", "nan"])
def test_a_patience_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputError, match=f"{VARIABLE}: found '{text}'; allowed: a positive number"):
        hang_seconds()


def hang_of_real_ranks() -> list[tuple[int, str]]:
    """Rank 1 sleeps; the others wait for it at a barrier until all watchdogs have reported."""
    watchdog._EVERY_S = 0.2
    mesh = join(read_environment(), Layout(1, 3), torch.device("cpu"))
    timer, found = StepTimer(torch.device("cpu")), list[tuple[int, str]]()
    with watching(mesh, timer, lambda *hang: found.append(hang)):
        if mesh.rank == 1:
            with timer.span("backward", 2):
                _until_reported(mesh, found)
        with timer.span("wait"):
            mesh.barrier()
    leave()
    return found


def _until_reported(mesh: Mesh, found: list[tuple[int, str]]) -> None:
    end = time.monotonic() + 60
    while not found and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(4 * watchdog._EVERY_S)


@pytest.mark.distributed
def test_all_ranks_name_the_same_one() -> None:
    ranks = spawn(hang_of_real_ranks, 3, env={VARIABLE: "1"})
    assert [[rank for rank, _ in found] for found in ranks] == [[1], [1], [1]]

"""The watchdog names the rank that hangs, and nobody while one computes or waits for its disk."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import watchdog
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.distributed.watchdog import (
    VARIABLE,
    Awaited,
    HangRule,
    Heartbeat,
    awaited_by_main_thread,
    hang_seconds,
    watching,
)
from gnnhpc.engines.send_receive import Receiver
from gnnhpc.engines.step_timer import StepTimer
from tests.tools.forked import spawn

Rank = Callable[[int], Heartbeat]


def rank(
    doing: str,
    *,
    works: bool = False,
    slow: bool = False,
    stopped: bool = False,
    awaited: Awaited | None = None,
) -> Rank:
    """The heartbeats of a rank."""

    def heartbeat(beat: int) -> Heartbeat:
        number, work = 7 if stopped else beat, beat if works else 0
        return {"beat": number, "work": work, "doing": doing, "slow": slow, "awaited": awaited}

    return heartbeat


WAITING = rank("wait of micro-batch 0", awaited="other ranks")
AT_ITS_GPU = rank("a step", awaited="its GPU")
CASES: dict[str, tuple[list[Rank], tuple[int, str] | None]] = {
    "sleeping": (
        [WAITING, WAITING, rank("forward of chunk 3")],
        (2, "hung: no rank did anything for 11 s; it was in forward of chunk 3"),
    ),
    "stopped": (
        [rank("forward"), WAITING, rank("writing a checkpoint", slow=True, stopped=True)],
        (2, "frozen for 11 s in writing a checkpoint"),
    ),
    "sleeping, the GPUs of others wait": (
        [AT_ITS_GPU, AT_ITS_GPU, rank("a step"), WAITING],
        (2, "hung: no rank did anything for 11 s; it was in a step"),
    ),
    "stopped, the GPU of another waits": (
        [AT_ITS_GPU, rank("a step", stopped=True, awaited="its GPU")],
        (1, "frozen for 11 s in a step"),
    ),
    "computing on a GPU": ([WAITING, AT_ITS_GPU], None),
    "computing on all GPUs": ([AT_ITS_GPU, AT_ITS_GPU], None),
    "working": ([WAITING, rank("wait", works=True)], None),
    "writing": ([rank("writing a checkpoint", slow=True), WAITING], None),
}


@pytest.mark.parametrize(("ranks", "hang"), CASES.values(), ids=CASES)
def test_the_rank_is_named(ranks: list[Rank], hang: tuple[int, str] | None) -> None:
    rule = HangRule(10)
    found = [rule.find([heartbeat(beat) for heartbeat in ranks]) for beat in range(1, 40)]
    assert next((each for each in found if each), None) == hang


def test_a_patience_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(InputError, match=f"{VARIABLE}: found 'soon'; allowed: a positive number"):
        hang_seconds()


def test_a_receive_of_the_hosts_memory_waits_for_other_ranks() -> None:
    """Ranks that share a GPU block there, also in steps without spans."""
    lock = threading.Lock()
    lock.acquire()
    found: list[Awaited | None] = []

    class Channel:
        def receive(self, into: torch.Tensor) -> Callable[[], object]:
            return lock.acquire

    def watch() -> None:
        end = time.monotonic() + 10
        while not found and time.monotonic() < end:
            found.extend({awaited_by_main_thread()} - {None})
            time.sleep(0.01)
        lock.release()

    receiver = Receiver(Channel(), [torch.zeros(1)])  # type: ignore[arg-type]
    receiver.expect(1)
    watcher = threading.Thread(target=watch)
    watcher.start()
    receiver.take()
    watcher.join()
    assert found == ["other ranks"]


def hang_of_real_ranks() -> tuple[bool, list[tuple[int, str]]]:
    """Rank 1 writes, computes and sleeps, each longer than it may hang. Rank 0 waits for it at its
    GPU, which spins, and rank 2 at a barrier, until all watchdogs have reported. Also whether they
    did so only while rank 1 slept."""
    watchdog._EVERY_S = 0.2
    mesh = join(read_environment(), Layout(1, 3), torch.device("cpu"))

    def spin(stream: Any = None) -> None:
        while not mesh.store.check(["slept"]):
            pass

    torch.cuda.Stream.synchronize = spin  # type: ignore[method-assign]
    torch.cuda.current_stream = lambda device: SimpleNamespace(synchronize=spin)  # type: ignore
    timer, found, only_then = StepTimer(torch.device("cuda")), list[tuple[int, str]](), True
    with watching(mesh, timer.activity, lambda *hang: found.append(hang)):
        timer.start()
        if mesh.rank == 0:
            timer.synchronize()
        if mesh.rank == 1:
            with timer.outside("writing a checkpoint"):
                time.sleep(2)
            end = time.monotonic() + 2
            while time.monotonic() < end:
                math.factorial(200)
            only_then = not found
            end = time.monotonic() + 60
            while not found and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(4 * watchdog._EVERY_S)
            mesh.store.set("slept", "")
        mesh.barrier()
    leave(mesh)
    return only_then, found


@pytest.mark.distributed
def test_all_ranks_name_the_same_one() -> None:
    """A long computation begins and ends no piece of work, but uses the processor; so does a rank
    that waits for its GPU."""
    ranks = spawn(hang_of_real_ranks, 3, env={VARIABLE: "1"})
    assert [only_then for only_then, _ in ranks] == [True] * 3
    expected = (1, "hung: no rank did anything for 1 s; it was in a step")
    assert [found for _, found in ranks] == [[expected]] * 3

"""The watchdog names the rank that hangs, and nobody while one computes or waits for its disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import watchdog
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.distributed.watchdog import VARIABLE, HangRule, Heartbeat, hang_seconds, watching
from gnnhpc.engines.step_timer import StepTimer
from tests.tools.forked import spawn

Rank = Callable[[int], Heartbeat]


def rank(doing: str, *, works: bool = False, slow: bool = False, stopped: bool = False) -> Rank:
    """The heartbeats of a rank."""

    def heartbeat(beat: int) -> Heartbeat:
        work = beat if works else 0
        return {"beat": 7 if stopped else beat, "work": work, "doing": doing, "slow": slow}

    return heartbeat


WAITING = rank("wait of micro-batch 0")
CASES: dict[str, tuple[list[Rank], tuple[int, str] | None]] = {
    "sleeping": (
        [WAITING, WAITING, rank("forward of chunk 3")],
        (2, "hung: no rank did anything for 11 s; it was in forward of chunk 3"),
    ),
    "stopped": (
        [rank("forward"), WAITING, rank("writing a checkpoint", slow=True, stopped=True)],
        (2, "frozen for 11 s in writing a checkpoint"),
    ),
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


def hang_of_real_ranks() -> tuple[bool, list[tuple[int, str]]]:
    """Rank 1 writes, computes and sleeps, each longer than it may hang; the others wait for it at a
    barrier until all watchdogs have reported. Also whether they did so only while it slept."""
    watchdog._EVERY_S = 0.2
    mesh = join(read_environment(), Layout(1, 3), torch.device("cpu"))
    timer, found, only_then = StepTimer(torch.device("cpu")), list[tuple[int, str]](), True
    with watching(mesh, timer.activity, lambda *hang: found.append(hang)):
        if mesh.rank == 1:
            with timer.outside("writing a checkpoint"):
                time.sleep(2)
            with timer.span("backward", 2):
                end = time.monotonic() + 2
                while time.monotonic() < end:
                    math.factorial(200)
                only_then = not found
                end = time.monotonic() + 60
                while not found and time.monotonic() < end:
                    time.sleep(0.05)
                time.sleep(4 * watchdog._EVERY_S)
        with timer.span("wait"):
            mesh.barrier()
    leave(mesh)
    return only_then, found


@pytest.mark.distributed
def test_all_ranks_name_the_same_one() -> None:
    """A long computation begins and ends no piece of work, but uses the processor."""
    ranks = spawn(hang_of_real_ranks, 3, env={VARIABLE: "1"})
    assert [only_then for only_then, _ in ranks] == [True] * 3
    assert [[rank for rank, _ in found] for _, found in ranks] == [[1], [1], [1]]

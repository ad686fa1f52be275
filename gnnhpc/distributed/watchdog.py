"""A thread a rank that ends a hang, by the heartbeats that all ranks write into their store.

A collective cannot distinguish a slow rank from a dead one. But when for a while no rank has begun
or ended a piece of work, and none has used its processor, then no rank computes anything and the
waiting will not end. A rank that reads or writes files, loads data by other processes or compiles
kernels may take longer.

A rank that waits for its GPU uses its processor, as CUDA spins, and NCCL lets the GPU wait for the
other ranks. So this counts as waiting, and a rank that does anything else is named. When all ranks
wait, a GPU may be computing, which may take longer, too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch

from gnnhpc.core.errors import InputError
from gnnhpc.kernels.compile import is_compiling
from gnnhpc.models.layers import compiled

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh

HANG_S = 20.0
VARIABLE = "GNNHPC_HANG_S"
_EVERY_S = 1.0
_LAST_REQUEST_S = 5.0
"""How long the end of a run waits for the answer to the last request to the store."""
_BUSY_CPU_S = 0.05
"""Processor seconds between two heartbeats that count as computing; waiting threads use less."""
_FROZEN_BEATS = 5
"""Heartbeats that a rank misses when its process is stopped or its node is gone."""
_WAITING = ("wait", "allreduce")
"""How `doing` begins while a rank waits for other ranks."""
_WAITING_MODULES = ("torch.distributed.distributed_c10d", "gnnhpc.engines.send_receive")
"""The modules in whose functions a rank waits for other ranks, whatever it is doing."""
_SLOW = ("reading", "writing", "sampling")
"""How `doing` begins while a rank waits for files, or for processes that load data."""
_SLOW_FACTOR = 30
"""These may take this many times as long as anything else."""


Activity = Callable[[], tuple[int, str]]
"""How many times a piece of work of this rank has begun or ended since the start, and the present
one in words."""
Awaited = Literal["other ranks", "its GPU"]
Heartbeat = dict[str, Any]
"""A rank's number of the beat, its work, what it is doing, whether that may be slow, and for what
it waits (`Awaited`), if it does."""


def hang_seconds() -> float:
    """$GNNHPC_HANG_S or the default; raises InputError for what is no positive number."""
    text = os.environ.get(VARIABLE)
    if not text:
        return HANG_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InputError("environment", VARIABLE, repr(text), "a positive number of seconds")
    return seconds


class Watchdog:
    """Writes this rank's heartbeats, reads all ranks', calls `on_hang(rank, why)` once.

    `store` is torch's. Time is counted in beats, one a second, so that an hour in which the job was
    suspended does not count. A rank 0 whose node is gone ends no wait, as the store is with it:
    there Slurm ends the job, or the collectives' own timeout does.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        activity: Activity,
        on_hang: Callable[[int, str], None],
    ) -> None:
        self._store, self._activity, self._on_hang = store, activity, on_hang
        self._keys = [f"watchdog/{each}" for each in range(world_size)]
        self._key = self._keys[rank]
        self._limit = max(1, round(hang_seconds() / _EVERY_S))
        self._finished = threading.Event()
        self._cpu_s = time.process_time()
        self._beat = self._busy = 0
        """Beats of this rank, and those between which its process has computed."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread.

        A request that is under way when rank 0's store ends would abort this process, so the last
        one ends first; but one to a store whose process is stopped never returns.
        """
        self._finished.set()
        self._thread.join(_LAST_REQUEST_S)

    def _watch(self) -> None:
        rule, all_came, hang = HangRule(self._limit), False, None
        try:
            while hang is None and not self._finished.wait(_EVERY_S if self._beat else 0):
                self._store.set(self._key, json.dumps(self._heartbeat()))
                all_came = all_came or self._store.check(self._keys)
                if all_came:
                    hang = rule.find(list(map(json.loads, self._store.multi_get(self._keys))))
        except RuntimeError:
            # The store ends with rank 0; what this rank does may end by that too.
            self._finished.wait(self._limit * _EVERY_S)
            hang = 0, "ended before the others"
        if hang is not None and not self._finished.is_set():
            self._on_hang(*hang)

    def _heartbeat(self) -> Heartbeat:
        cpu_s, (work, doing) = time.process_time(), self._activity()
        awaited = awaited_by_main_thread()
        if awaited is None and doing.startswith(_WAITING):
            awaited = "other ranks"
        self._busy += awaited != "its GPU" and cpu_s - self._cpu_s > _BUSY_CPU_S
        self._cpu_s = cpu_s
        self._beat += 1
        return {
            "beat": self._beat,
            "work": work + self._busy,
            "doing": doing,
            "slow": doing.startswith(_SLOW) or is_compiling() or compiled.is_compiling(),
            "awaited": awaited,
        }


def awaited_by_main_thread() -> Awaited | None:
    """For what the main thread waits, by its innermost Python function; None while it does not.

    The training need not report it, and nothing is added to a step.
    """
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    if frame.f_globals.get("__name__") in _WAITING_MODULES:
        return "other ranks"
    return "its GPU" if frame.f_code is torch.cuda.Stream.synchronize.__code__ else None


class HangRule:
    """Finds a hang in the heartbeats of all ranks: for `limit` beats no rank has done anything."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._before: list[Heartbeat] = []
        self._idle = 0
        """Beats since any rank's work grew."""
        self._missed: Counter[int] = Counter()
        """Beats since each rank's own last one."""

    def find(self, beats: list[Heartbeat]) -> tuple[int, str] | None:
        """The rank that hangs and why, if one does; `beats` has the last one of each rank."""
        moved = not self._before
        for rank, (last, beat) in enumerate(zip(self._before, beats, strict=False)):
            self._missed[rank] = self._missed[rank] + 1 if beat["beat"] == last["beat"] else 0
            moved = moved or beat["work"] != last["work"]
        self._before, self._idle = beats, 0 if moved else self._idle + 1
        ranks = range(len(beats))
        frozen = [rank for rank in ranks if self._missed[rank] >= _FROZEN_BEATS]
        causes = frozen or [rank for rank in ranks if beats[rank]["awaited"] is None]
        slow = any(beats[rank]["slow"] for rank in ranks if rank not in frozen)
        a_gpu_may_compute = not causes and any(beat["awaited"] == "its GPU" for beat in beats)
        if self._idle <= self._limit * (_SLOW_FACTOR if slow or a_gpu_may_compute else 1):
            return None
        # Where all wait, the one with least work.
        rank = causes[0] if causes else min(ranks, key=lambda each: beats[each]["work"])
        seconds, doing = f"{self._idle * _EVERY_S:.0f} s", beats[rank]["doing"]
        if frozen:
            return rank, f"frozen for {seconds} in {doing}"
        return rank, f"hung: no rank did anything for {seconds}; it was in {doing}"


@contextlib.contextmanager
def watching(mesh: Mesh, activity: Activity, on_hang: Callable[[int, str], None]) -> Iterator[None]:
    """Run a watchdog in a `with` block; not where there is one rank, which waits for no other."""
    if mesh.store is None:
        yield
        return
    watchdog = Watchdog(mesh.store, mesh.rank, mesh.layout.world_size, activity, on_hang)
    try:
        yield
    finally:
        watchdog.close()

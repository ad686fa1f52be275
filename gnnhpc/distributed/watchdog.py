"""A thread a rank that ends a hang, by the heartbeats that all ranks write into their store.

A collective cannot distinguish a slow rank from a dead one. But when for a while no rank has begun
or ended a piece of work, and none has used its processor, then no rank computes anything and the
waiting will not end. A rank that reads or writes files, loads data by other processes or compiles
kernels may take longer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gnnhpc.core.errors import InputError
from gnnhpc.kernels.compile import is_compiling

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh

HANG_S = 20.0
VARIABLE = "GNNHPC_HANG_S"
_EVERY_S = 1.0
_BUSY_CPU_S = 0.05
"""Processor seconds between two heartbeats that count as computing; waiting threads use less."""
_FROZEN_BEATS = 5
"""Heartbeats that a rank misses when its process is stopped or its node is gone."""
_WAITING = ("wait", "allreduce")
"""How `doing` begins while a rank waits for other ranks."""
_SLOW = ("reading", "writing", "sampling")
"""How `doing` begins while a rank waits for files, or for processes that load data."""
_SLOW_FACTOR = 30
"""These may take this many times as long as anything else."""


class Store(Protocol):
    """The part of torch's store that watchdogs use."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


class Activity(Protocol):
    """What a rank is doing, as the step timer knows it."""

    @property
    def work(self) -> int:
        """How many times a piece of work has begun or ended since the start."""
        ...

    @property
    def doing(self) -> str:
        """The present piece of work, in words."""
        ...


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


_NOT_STARTED = json.dumps({"beat": 0, "work": 0, "doing": "starting", "slow": False})


class Watchdog:
    """Writes this rank's heartbeats, reads all ranks', calls `on_hang(rank, why)` once.

    Time is counted in beats, one a second, so that an hour in which the job was suspended does not
    count.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        activity: Activity,
        on_hang: Callable[[int, str], None],
    ) -> None:
        self._store, self._rank, self._activity = store, rank, activity
        self._on_hang = on_hang
        self._keys = [f"watchdog/{each}" for each in range(world_size)]
        self._limit = max(1, round(hang_seconds() / _EVERY_S))
        self._finished = threading.Event()
        self._store_gone = False
        self._own = json.loads(_NOT_STARTED)
        self._cpu_s = time.process_time()
        self._busy = 0
        """Beats between which this process has computed."""
        self._beats: dict[int, dict[str, Any]] = {}
        """The last heartbeat of each rank, as the store had it."""
        self._before: dict[int, dict[str, Any]] = {}
        self._idle = 0
        """Beats since any rank's work grew."""
        self._missed = dict.fromkeys(range(world_size), 0)
        """Beats since each rank's own last one."""
        self._unanswered = 0
        """Beats since the store last answered."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        # A request to a store whose process is stopped never returns, so `close` does not wait.
        threading.Thread(target=self._exchange, name="watchdog-store", daemon=True).start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._finished.wait(_EVERY_S):
            self._own = self._heartbeat()
            beats = {self._rank: self._own} if self._store_gone else self._beats
            hang = self._find_hang(beats)
            if hang is not None and not self._finished.is_set():
                self._on_hang(*hang)
                return

    def _heartbeat(self) -> dict[str, Any]:
        cpu_s, doing = time.process_time(), self._activity.doing
        self._busy += cpu_s - self._cpu_s > _BUSY_CPU_S
        self._cpu_s = cpu_s
        return {
            "beat": self._own["beat"] + 1,
            "work": self._activity.work + self._busy,
            "doing": doing,
            "slow": doing.startswith(_SLOW) or is_compiling(),
        }

    def _exchange(self) -> None:
        while not self._finished.wait(_EVERY_S):
            try:
                self._store.set(self._keys[self._rank], json.dumps(self._own))
                self._beats = dict(enumerate(map(json.loads, self._read_all())))
                self._unanswered = 0
            except RuntimeError:
                # The store ended with rank 0. The collectives of other ranks fail then; this
                # rank watches itself alone from now on.
                self._store_gone = True
                return

    def _read_all(self) -> list[bytes | str]:
        """The last heartbeat of each rank; one that stopped in its first second has none."""
        if self._store.check(self._keys):
            return [*self._store.multi_get(self._keys)]
        return [
            self._store.get(key) if self._store.check([key]) else _NOT_STARTED for key in self._keys
        ]

    def _find_hang(self, beats: dict[int, dict[str, Any]]) -> tuple[int, str] | None:
        """The rank that hangs and why, once no rank has done anything for the time allowed."""
        self._unanswered += not self._store_gone
        if self._unanswered > self._limit:
            return 0, f"frozen: its store has not answered for {_seconds(self._unanswered)}"
        before, self._before = self._before, beats
        for rank, beat in beats.items():
            same = beat["beat"] == before.get(rank, {}).get("beat")
            self._missed[rank] = self._missed[rank] + 1 if same else 0
        moved = any(
            beat["work"] != before.get(rank, {}).get("work") for rank, beat in beats.items()
        )
        self._idle = 0 if moved or not beats else self._idle + 1
        slow = any(beat["slow"] and not self._is_frozen(rank) for rank, beat in beats.items())
        if self._idle <= self._limit * (_SLOW_FACTOR if slow else 1):
            return None
        return self._hung_rank(beats)

    def _is_frozen(self, rank: int) -> bool:
        return self._missed[rank] >= _FROZEN_BEATS

    def _hung_rank(self, beats: dict[int, dict[str, Any]]) -> tuple[int, str]:
        """A stopped process; else a rank that waits for no other; else the one with least work."""
        seconds = _seconds(self._idle)
        if self._store_gone:
            return self._rank, f"hung: it did nothing for {seconds} in {self._own['doing']}"
        frozen = [rank for rank in beats if self._is_frozen(rank)]
        if frozen:
            return frozen[0], f"frozen for {seconds} in {beats[frozen[0]]['doing']}"
        idle = [rank for rank, beat in beats.items() if not beat["doing"].startswith(_WAITING)]
        rank = idle[0] if idle else min(beats, key=lambda each: beats[each]["work"])
        return rank, f"hung: no rank did anything for {seconds}; it was in {beats[rank]['doing']}"


def _seconds(beats: int) -> str:
    return f"{beats * _EVERY_S:.0f} s"


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

"""A thread a rank that tells a hang from a long computation, and ends a hang after some seconds.

A collective cannot tell them apart: waiting for a slow rank looks like waiting for a dead one. But
when for a while no rank has begun or ended a piece of work, and none has used its processor, nor
has a process that it started, then no rank computes anything and the waiting will not end. A host
that waits for its GPU may spin: then its processor's use shows nothing. What the GPU has reached
counts instead, and what waiting does not do: take new memory, or start processes that compute, as
where a first step compiles its kernels or loads them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gnnhpc.core.errors import InputError
from gnnhpc.kernels.compile import is_compiling

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh

HANG_S = 20.0
VARIABLE = "GNNHPC_HANG_S"
_EVERY_S = 1.0
_BUSY_CPU_S = 0.05
"""Processor seconds between two checks that count as computing; waiting threads use far less."""
_BUSY_PAGES = 32
"""First used between two checks, they count as computing; a host that spins uses 0 or 1, one that
compiles or loads kernels hundreds, in a second in which no process that it started computes.
"""
_FROZEN_CHECKS = 5
"""Checks that a rank's watchdog misses in a row when its process is stopped."""
_WAITING = ("wait", "allreduce")
"""How `doing` begins while a rank waits for other ranks."""
_STORAGE = ("reading", "writing")
"""How `doing` begins while a rank waits for files, minutes on a busy file system."""
_STORAGE_FACTOR = 30
"""Files may take this many times as long as anything else."""
_WAITS_FOR_STORAGE = "D"
"""The state of a thread that does, whatever it is doing: as where a mapped file is paged in
(proc(5))."""
PROCESSES = Path("/proc")
TASKS = PROCESSES / "self" / "task"


class Store(Protocol):
    """The part of torch's store that watchdogs use to exchange what their ranks do."""

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

    @property
    def spins(self) -> bool:
        """Whether this process may use its processor while it waits."""
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


_NOT_STARTED = json.dumps({"check": 0, "work": 0, "doing": "starting"})


class Watchdog:
    """Writes this rank's activity to the store, checks all ranks', calls `on_hang(rank, why)` once.

    Time is counted in checks, one a second, so that an hour in which the job was suspended does not
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
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._activity = activity
        self._on_hang = on_hang
        self._limit = max(1, round(hang_seconds() / _EVERY_S))
        self._finished = threading.Event()
        self._store_gone = False
        self._own_state = _NOT_STARTED
        self._states: dict[int, dict[str, Any]] = {}
        self._states_before: dict[int, dict[str, Any]] = {}
        self._idle_checks = 0
        """Checks since any rank's work grew."""
        self._missed_checks = dict.fromkeys(range(world_size), 0)
        """Checks since a rank's own watchdog last wrote its state."""
        self._unanswered_checks = 0
        """Checks since the store last answered."""
        self._own_work: int | None = None
        """How much this rank had done at the last check without a store."""
        self._used: _Used | None = None
        """At the last check; None before the first."""
        self._busy = 0
        """Checks between which the process has computed."""
        self._storage_check = -math.inf
        """The last check at which a thread waited for storage, or a kernel was compiled."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        # A request to a store whose process is stopped never returns, so `close` does not wait.
        threading.Thread(target=self._exchange, name="watchdog-store", daemon=True).start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        checks = 0
        while not self._finished.wait(_EVERY_S):
            checks += 1
            self._own_state = self._measure(checks)
            hang = self._find_own_hang() if self._store_gone else self._find_hang()
            if hang is not None and not self._finished.is_set():
                self._on_hang(*hang)
                return

    def _measure(self, checks: int) -> str:
        activity = self._activity
        # To look through all processes takes milliseconds: in the last half of the time alone, or
        # the last checks of a short one, as two looks and the other ranks have to come before it.
        everyone = self._idle_checks >= min(self._limit // 2, self._limit - 4)
        # Before those that run: one that ends meanwhile is in neither, and counted when next seen.
        ended = os.times()
        children = list(_stats_of(_descendants() if everyone else _children()))
        used = _used(children, ended, everyone)
        self._busy += self._used is not None and used.shows_work(self._used, activity.spins)
        self._used = used
        if _waits_for_storage(children) or is_compiling():
            self._storage_check = checks
        return json.dumps(
            {
                "check": checks,
                "work": activity.work + self._busy,
                "doing": activity.doing,
                "storage": checks - self._storage_check < self._limit,
            }
        )

    def _exchange(self) -> None:
        keys = [self._key(rank) for rank in range(self._world_size)]
        while not self._finished.wait(_EVERY_S):
            try:
                self._store.set(keys[self._rank], self._own_state)
                self._unanswered_checks = 0
                self._states = dict(enumerate(self._read_states(keys)))
                self._unanswered_checks = 0
            except RuntimeError:
                # The store ended with rank 0; a rank in a collective fails and says so.
                self._store_gone = True
                return

    def _read_states(self, keys: list[str]) -> list[dict[str, Any]]:
        """The last of each rank; one that stopped in its first second has not written any.

        In two requests: one a rank, of each rank, are more a second than a store answers to some
        hundreds of them.
        """
        if self._store.check(keys):
            return [json.loads(text) for text in self._store.multi_get(keys)]
        states = []
        for key in keys:
            text = self._store.get(key) if self._store.check([key]) else _NOT_STARTED
            self._unanswered_checks = 0
            states.append(json.loads(text))
        return states

    def _find_hang(self) -> tuple[int, str] | None:
        """The rank that hangs and why, once no rank has done anything for the time allowed."""
        self._unanswered_checks += 1
        if self._unanswered_checks > self._limit:
            seconds = self._seconds(self._unanswered_checks)
            return 0, f"frozen: its store has not answered for {seconds}"
        now, before = self._states, self._states_before
        self._states_before = now
        for rank, state in now.items():
            is_new = state["check"] != before.get(rank, {}).get("check")
            self._missed_checks[rank] = 0 if is_new else self._missed_checks[rank] + 1
        moved = any(now[rank]["work"] != before.get(rank, {}).get("work") for rank in now)
        self._idle_checks = 0 if moved or not now else self._idle_checks + 1
        return self._hung_rank(now) if self._idle_checks > self._limit_of(now) else None

    def _find_own_hang(self) -> tuple[int, str] | None:
        """This rank and why, if it has done nothing since rank 0 ended: another rank's collectives
        fail then, those of one that hangs by itself never come."""
        state = json.loads(self._own_state)
        if state["work"] != self._own_work:
            self._own_work, self._idle_checks = state["work"], 0
            return None
        self._idle_checks += 1
        if self._idle_checks <= self._limit_of({self._rank: state}):
            return None
        seconds = self._seconds(self._idle_checks)
        return self._rank, f"hung: it did nothing for {seconds} in {state['doing']}"

    def _limit_of(self, now: dict[int, dict[str, Any]]) -> int:
        """More checks while a rank reads or writes files, unless its process is stopped."""
        storage = any(
            (state.get("storage") or state["doing"].startswith(_STORAGE))
            and self._missed_checks[rank] < _FROZEN_CHECKS
            for rank, state in now.items()
        )
        return self._limit * (_STORAGE_FACTOR if storage else 1)

    def _hung_rank(self, now: dict[int, dict[str, Any]]) -> tuple[int, str]:
        """A stopped process; else a rank that waits for no other; else the one with least work."""
        seconds = self._seconds(self._idle_checks)
        frozen = [rank for rank in now if self._missed_checks[rank] >= _FROZEN_CHECKS]
        if frozen:
            return frozen[0], f"frozen for {seconds} in {now[frozen[0]]['doing']}"
        idle = [rank for rank, state in now.items() if not state["doing"].startswith(_WAITING)]
        rank = idle[0] if idle else min(now, key=lambda r: now[r]["work"])
        return rank, f"hung: no rank did anything for {seconds}; it was in {now[rank]['doing']}"

    @staticmethod
    def _seconds(checks: int) -> str:
        return f"{checks * _EVERY_S:.0f} s"

    @staticmethod
    def _key(rank: int) -> str:
        return f"watchdog/{rank}"


@dataclass(frozen=True)
class _Used:
    """By a process, since its start."""

    own_s: float
    """Seconds of processors, without the thread that asks."""
    children_s: float
    """Seconds of processes that it started, as a loader's workers or a compiler, and that the
    system lists."""
    everyone: bool
    """Whether these are also those that others of them started, as by a driver of a compiler."""
    pages: int
    """Of memory that it was the first to use."""

    def shows_work(self, before: _Used, spins: bool) -> bool:
        """Whether it has computed since, where it may spin instead (`spins`) or not."""
        if self.everyone == before.everyone and self.children_s - before.children_s > _BUSY_CPU_S:
            return True
        if spins:
            return self.pages - before.pages > _BUSY_PAGES
        return self.own_s - before.own_s > _BUSY_CPU_S


def _used(children: Sequence[list[str]], ended: os.times_result, everyone: bool) -> _Used:
    """With what the system says of processes that this one started and that run, and of those that
    have ended."""
    ticks = sum(int(used) for fields in children for used in fields[11:15])
    # Without this thread: of many threads it takes as long to look as some work would.
    own, this = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_THREAD))
    return _Used(
        own_s=time.process_time() - time.thread_time(),
        children_s=ticks / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system,
        everyone=everyone,
        pages=own.ru_minflt - this.ru_minflt,
    )


def _waits_for_storage(children: Iterable[list[str]]) -> bool:
    """Whether a thread of this process does, or a process that it started."""
    threads = _stats_of(TASKS.glob("*"))
    return any(fields[0] == _WAITS_FOR_STORAGE for fields in (*threads, *children))


def _children() -> Iterator[Path]:
    """The folders in /proc of the processes that this one started and that run; none where the
    system does not list them (proc(5))."""
    for listing in TASKS.glob("*/children"):
        # A thread may end while it is looked at.
        with contextlib.suppress(OSError):
            yield from (PROCESSES / pid for pid in listing.read_text().split())


def _descendants() -> list[Path]:
    """The same, and those that these started, and so on; of all processes, by their parents."""
    children: dict[str, list[Path]] = {}
    for each in PROCESSES.glob("[0-9]*"):
        for stats in _stats_of([each]):
            children.setdefault(stats[1], []).append(each)
    found = list(children.get(str(os.getpid()), ()))
    for each in found:
        found += children.get(each.name, ())
    return found


def _stats_of(tasks: Iterable[Path]) -> Iterator[list[str]]:
    """What the system says of each that still runs, after its name, which may hold anything: first
    its state, then its parent; behind the state 11 and 12 are user and system time, in clock ticks,
    13 and 14 those of its children that it has waited for (proc(5))."""
    for task in tasks:
        with contextlib.suppress(OSError):
            yield (task / "stat").read_text().rpartition(")")[2].split()


@contextlib.contextmanager
def watching(mesh: Mesh, activity: Activity, on_hang: Callable[[int, str], None]) -> Iterator[None]:
    """Run a watchdog in a `with` block; not where there is one rank, which waits for no other."""
    if mesh.store is None:
        yield
        return
    watchdog = Watchdog(
        mesh.store,
        mesh.rank,
        mesh.layout.world_size,
        activity,
        on_hang,
    )
    try:
        yield
    finally:
        watchdog.close()

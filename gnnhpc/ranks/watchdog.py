"""A thread a rank that tells a hang from a long computation, so that neither is waited out.

Collectives cannot tell: a rank waiting for a slow peer looks like one waiting for a dead peer. But
when for a while no rank anywhere has begun or ended a piece of work, and none has used its
processor, nothing is being computed and nothing will come.
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

if TYPE_CHECKING:
    from gnnhpc.ranks.mesh import Mesh

HANG_S = 20.0
VARIABLE = "GNNHPC_HANG_S"
_EVERY_S = 1.0
_BUSY_CPU_S = 0.05
"""Processor seconds in one look that count as computing; listening threads use far less."""
_FROZEN_LOOKS = 5
_WAITING = ("wait", "allreduce")
"""How the words for what a rank does begin while it waits for others."""
_STORAGE = ("reading", "writing")
"""And while it waits for files, which a busy file system may take minutes over."""
_STORAGE_PATIENCE = 30
"""Times as long as for anything else."""


class Store(Protocol):
    """What the watchdogs tell each other through."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class Activity(Protocol):
    """What a rank is doing, as whoever times it knows."""

    @property
    def work(self) -> int:
        """Pieces of work begun and ended since the start."""
        ...

    @property
    def doing(self) -> str:
        """The present one, in words."""
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


_SILENT = json.dumps({"look": 0, "work": 0, "doing": "starting"})


class Watchdog:
    """Publishes this rank's activity and watches all ranks'; `on_hang(rank, why)` is called once.

    `activity()` gives a counter that grows with the work and a word for what is being done. Time
    is counted in looks: a job that its scheduler suspended for an hour has missed them all.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        activity: Callable[[], tuple[int, str]],
        on_hang: Callable[[int, str], None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._activity = activity
        self._on_hang = on_hang
        self._patience = max(1, round(hang_seconds() / _EVERY_S))
        self._finished = threading.Event()
        self._store_gone = False
        self._mine = _SILENT
        self._everyone: dict[int, dict[str, Any]] = {}
        self._seen: dict[int, dict[str, Any]] = {}
        self._quiet = 0
        """Looks since any rank's work grew."""
        self._stale = dict.fromkeys(range(world_size), 0)
        """Looks since a rank's own watchdog was last heard of."""
        self._unanswered = 0
        """Looks since the store last answered."""
        self._cpu = time.process_time()
        self._busy = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        # Asking a store whose process is stopped never returns, so nobody waits for this one.
        threading.Thread(target=self._exchange, name="watchdog-store", daemon=True).start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        while not self._finished.wait(_EVERY_S) and not self._store_gone:
            looks += 1
            self._mine = self._measure(looks)
            stuck = self._nobody_moves()
            if stuck is not None and not self._finished.is_set():
                self._on_hang(*stuck)
                return

    def _measure(self, looks: int) -> str:
        cpu = time.process_time()
        self._busy += cpu - self._cpu > _BUSY_CPU_S
        self._cpu = cpu
        count, doing = self._activity()
        return json.dumps({"look": looks, "work": count + self._busy, "doing": doing})

    def _exchange(self) -> None:
        keys = [self._key(rank) for rank in range(self._world_size)]
        while not self._finished.wait(_EVERY_S):
            try:
                self._store.set(keys[self._rank], self._mine)
                self._everyone = {rank: self._heard(key) for rank, key in enumerate(keys)}
                self._unanswered = 0
            except RuntimeError:
                # The store went with rank 0; the collectives will say so.
                self._store_gone = True
                return

    def _heard(self, key: str) -> dict[str, Any]:
        """A rank's last words; one stopped in its first second has not said any."""
        said = self._store.get(key) if self._store.check([key]) else _SILENT
        found: dict[str, Any] = json.loads(said)
        return found

    def _nobody_moves(self) -> tuple[int, str] | None:
        self._unanswered += 1
        if self._unanswered > self._patience:
            return 0, f"frozen: its store has not answered for {self._seconds(self._unanswered)}"
        now, before = self._everyone, self._seen
        self._seen = now
        for rank, state in now.items():
            heard = state["look"] != before.get(rank, {}).get("look")
            self._stale[rank] = 0 if heard else self._stale[rank] + 1
        moved = any(now[rank]["work"] != before.get(rank, {}).get("work") for rank in now)
        self._quiet = 0 if moved or not now else self._quiet + 1
        return self._blame(now) if self._quiet > self._patience_with(now) else None

    def _patience_with(self, now: dict[int, dict[str, Any]]) -> int:
        """A stopped process is not reading or writing, whatever its last words were."""
        storage = any(
            state["doing"].startswith(_STORAGE) and self._stale[rank] < _FROZEN_LOOKS
            for rank, state in now.items()
        )
        return self._patience * (_STORAGE_PATIENCE if storage else 1)

    def _blame(self, now: dict[int, dict[str, Any]]) -> tuple[int, str]:
        """A rank that no longer looks is the cause; else one that waits for nobody; else the last.

        A watchdog looks once a second, so several looks missed in a row mean a stopped process.
        """
        quiet = self._seconds(self._quiet)
        frozen = [rank for rank in now if self._stale[rank] >= _FROZEN_LOOKS]
        if frozen:
            return frozen[0], f"frozen for {quiet} in {now[frozen[0]]['doing']}"
        idle = [rank for rank, state in now.items() if not state["doing"].startswith(_WAITING)]
        rank = idle[0] if idle else min(now, key=lambda r: now[r]["work"])
        return rank, f"hung: no rank did anything for {quiet}; it was in {now[rank]['doing']}"

    @staticmethod
    def _seconds(looks: int) -> str:
        return f"{looks * _EVERY_S:.0f} s"

    @staticmethod
    def _key(rank: int) -> str:
        return f"watchdog/{rank}"


@contextlib.contextmanager
def watching(mesh: Mesh, activity: Activity, on_hang: Callable[[int, str], None]) -> Iterator[None]:
    """Keep a watchdog while the steps run; a rank alone cannot hang on others."""
    if mesh.store is None:
        yield
        return
    watchdog = Watchdog(
        mesh.store,
        mesh.rank,
        mesh.layout.world_size,
        lambda: (activity.work, activity.doing),
        on_hang,
    )
    try:
        yield
    finally:
        watchdog.close()

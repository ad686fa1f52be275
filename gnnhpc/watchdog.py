"""A thread a rank that tells a hang from a long computation, so that neither is waited out.

Collectives cannot tell: a rank waiting for a slow peer looks like one waiting for a dead peer. But
when for a while no rank anywhere has begun or ended a piece of work, and none has used its
processor, nothing is being computed and nothing will come.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gnnhpc.errors import InputError

if TYPE_CHECKING:
    from gnnhpc.mesh import Mesh
    from gnnhpc.timing import StepTimer

HANG_S = 20.0
VARIABLE = "GNNHPC_HANG_S"
_EVERY_S = 1.0
_BUSY_CPU_S = 0.05
"""Processor seconds in one look that count as computing; listening threads use far less."""
_FROZEN_S = 5.0


class Store(Protocol):
    """What the watchdogs tell each other through."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


def hang_seconds() -> float:
    """$GNNHPC_HANG_S or the default; raises InputError for what is no positive number."""
    text = os.environ.get(VARIABLE)
    if not text:
        return HANG_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise InputError("environment", VARIABLE, repr(text), "a positive number of seconds")
    return seconds


class Watchdog:
    """Publishes this rank's activity and watches all ranks'; `on_hang(rank, why)` is called once.

    `activity()` gives a counter that grows with the work and a word for what is being done.
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
        self._patience_s = hang_seconds()
        self._finished = threading.Event()
        self._seen: dict[int, dict[str, Any]] = {}
        self._looked: dict[int, float] = {}
        self._changed = time.monotonic()
        self._cpu = time.process_time()
        self._busy = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        while not self._finished.wait(_EVERY_S):
            looks += 1
            try:
                self._publish(looks)
                stuck = self._nobody_moves()
            except RuntimeError:
                # The store went with rank 0; the collectives will say so.
                return
            if stuck is not None and not self._finished.is_set():
                self._on_hang(*stuck)
                return

    def _publish(self, looks: int) -> None:
        cpu = time.process_time()
        self._busy += cpu - self._cpu > _BUSY_CPU_S
        self._cpu = cpu
        count, doing = self._activity()
        state = {"look": looks, "work": count + self._busy, "doing": doing}
        self._store.set(self._key(self._rank), json.dumps(state))

    def _nobody_moves(self) -> tuple[int, str] | None:
        keys = [self._key(rank) for rank in range(self._world_size)]
        if not self._store.check(keys):
            self._changed = time.monotonic()
            return None
        now = {rank: json.loads(self._store.get(key)) for rank, key in enumerate(keys)}
        moved = any(
            self._seen.get(rank, {}).get("work") != state["work"] for rank, state in now.items()
        )
        clock = time.monotonic()
        for rank, state in now.items():
            if self._seen.get(rank, {}).get("look") != state["look"]:
                self._looked[rank] = clock
        quiet_s = clock - self._changed
        if moved:
            self._changed = time.monotonic()
        elif quiet_s > self._patience_s:
            return self._blame(now, quiet_s)
        self._seen = now
        return None

    def _blame(self, now: dict[int, dict[str, Any]], quiet_s: float) -> tuple[int, str]:
        """A rank that no longer looks is the cause; else one that waits for nobody; else the last.

        A watchdog looks once a second, so several looks missed in a row mean a stopped process.
        """
        clock = time.monotonic()
        frozen = [rank for rank in now if clock - self._looked.get(rank, 0.0) > _FROZEN_S]
        if frozen:
            return frozen[0], f"frozen for {quiet_s:.0f} s in {now[frozen[0]]['doing']}"
        idle = [rank for rank, state in now.items() if not state["doing"].startswith("wait")]
        rank = idle[0] if idle else min(now, key=lambda r: now[r]["work"])
        doing = now[rank]["doing"]
        return rank, f"hung: no rank did anything for {quiet_s:.0f} s; it was in {doing}"

    @staticmethod
    def _key(rank: int) -> str:
        return f"watchdog/{rank}"


@contextlib.contextmanager
def watching(mesh: Mesh, timer: StepTimer, on_hang: Callable[[int, str], None]) -> Iterator[None]:
    """Keep a watchdog while the steps run; a rank alone cannot hang on others."""
    if mesh.store is None:
        yield
        return
    watchdog = Watchdog(
        mesh.store, mesh.rank, mesh.layout.world_size, lambda: (timer.work, timer.doing), on_hang
    )
    try:
        yield
    finally:
        watchdog.close()

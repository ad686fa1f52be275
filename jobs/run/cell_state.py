"""The states that a cell can have, and what `status` shows of a cell."""

from __future__ import annotations

from dataclasses import dataclass

STATES = (
    "done",
    "invalid",
    "running",
    "pending",
    "unknown",
    "failed",
    "timed out",
    "preempted",
    "out of memory",
    "cancelled",
    "interrupted",
    "lost",
    "missing",
)
"""invalid: done, but a check found an error. unknown: its job may wait or run, and Slurm does not
say. lost: ended without result or failure. missing: never started."""
LIVE = ("running", "pending")
MAY_RUN = (*LIVE, "unknown")
UNFINISHED = tuple(state for state in STATES if state not in ("done", "invalid", *MAY_RUN))
FAILED = tuple(state for state in UNFINISHED if state != "missing")


@dataclass(frozen=True)
class CellState:
    """One cell as `status --cells` shows it."""

    cell: str
    array: str
    index: int
    state: str
    attempts: int = 0
    attempt: int | None = None
    """The attempt that the state is taken from."""
    step: int | None = None
    steps: int | None = None
    step_s: float | None = None
    eta_s: float | None = None
    detail: str | None = None
    """Why it waits, or the cause of the failure, in one line."""
    flags: tuple[str, ...] = ()
    job: str | None = None

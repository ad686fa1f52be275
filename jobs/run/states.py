"""The states that a cell can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STATES = (
    "done",
    "flagged",
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
"""flagged: done, but a check found it invalid. unknown: its job may wait or run, and Slurm does not
say. lost: ended without result or failure. missing: never started."""
LIVE = ("running", "pending")
MAY_RUN = (*LIVE, "unknown")
UNFINISHED = tuple(state for state in STATES if state not in ("done", "flagged", *MAY_RUN))
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
    """Slurm's reason, or the cause of the failure in one line."""
    flags: tuple[str, ...] = ()
    job: str | None = None
    reason: str | None = None
    """Slurm's reason alone, for a cell that waits in its queue."""


def counts(states: Sequence[CellState]) -> dict[str, int]:
    """How many cells are in each state, in the order of `STATES`."""
    found = {state: sum(cell.state == state for cell in states) for state in STATES}
    return {state: count for state, count in found.items() if count}

"""Cancels a run's jobs in Slurm and stops its local supervisors."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.core.errors import InputError
from jobs.run.run_state import RunState, read_run
from jobs.run.scheduler import Local, Slurm


def cancel(run: str | Path, array: str | None = None, *, force: bool = False) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns a line for each.

    Waits while their ranks save. `array` cancels that array alone; `force` cancels all recorded
    jobs where Slurm does not say which of them have ended. Raises InputError for an unknown array,
    and without `force` for such jobs; GnnhpcError if scancel refuses. Then nothing is stopped.
    """
    state = read_run(run)
    _check_array(state, array)
    alive = any(one.supervisor_is_alive for one in state.submissions)
    if array is not None and alive:
        return Local().cancel(state, array, force=force)
    # Slurm first: where it refuses or does not say, nothing must have been stopped.
    ended = Slurm().cancel(state, array, force=force) if state.may_be_in_slurm else []
    return ended + (Local().cancel(state, array, force=force) if alive else [])


def _check_array(state: RunState, array: str | None) -> None:
    """Raises InputError for an unknown array, and for one whose cells run in blocks."""
    blocks = state.blocks.tables
    known = {cell.array for cell in state.cells} | blocks.keys()
    if array is not None and array not in known:
        raise InputError("--array", None, repr(array), ", ".join(sorted(known)))
    if array is None or array in {one.array for one in state.submissions}:
        return
    for name, lines in blocks.items():
        if any(line.array == array for line in lines):
            found = f"{array}, whose cells are in blocks with others"
            raise InputError("--array", None, found, f"{name}, or no --array")

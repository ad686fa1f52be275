"""Cancels a run's jobs in Slurm and stops its local supervisors."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.core.errors import InputError
from jobs.run.run_state import RunState, read_run
from jobs.run.status import live_jobs
from jobs.slurm.queue import forget_answers
from jobs.slurm.sbatch import cancel_for_good
from jobs.submission.local_runs import stop_supervisors


def cancel(run: str | Path, array: str | None = None, *, force: bool = False) -> list[str]:
    """Cancel a run's Slurm arrays and stop its local supervisors; returns a line for each.

    Waits while their ranks save. `array` cancels that array alone; `force` cancels all recorded
    jobs where Slurm does not say which of them have ended. Raises InputError for an unknown array,
    for one array of a local run, and without `force` for such jobs; GnnhpcError if scancel refuses.
    Then nothing is stopped.
    """
    state = read_run(run)
    _check_array(state, array)
    supervisors = {int(pid) for pid in state.supervisors}
    if array is not None and supervisors:
        allowed = "no --array, one process runs all of them"
        raise InputError("--array", None, "a local run", allowed)
    # Slurm first: where it refuses or does not say, nothing must have been stopped.
    ended = _cancel_in_slurm(state, array, force=force) if state.may_be_in_slurm else []
    stop_supervisors(supervisors)
    return ended + [f"local supervisor {pid}" for pid in sorted(supervisors)]


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


def _cancel_in_slurm(state: RunState, array: str | None, *, force: bool) -> list[str]:
    """For at most 45 seconds it also cancels what ranks requeue while they save."""
    jobs = _jobs_to_cancel(state, array, force=force)
    if not jobs:
        return []
    try:
        left = cancel_for_good(jobs, state.users)
    finally:
        forget_answers()
    if left is None:
        return [f"Slurm job {job}, but Slurm does not say whether it has ended" for job in jobs]
    words = dict.fromkeys(left, ", whose ranks have not ended yet")
    return [f"Slurm job {job}{words.get(job, '')}" for job in jobs]


def _jobs_to_cancel(state: RunState, array: str | None, *, force: bool) -> list[str]:
    """Jobs that Slurm says are this run's; with `force` also those that it does not mention."""
    jobs, queue = live_jobs(state, array)
    if queue.answered:
        return jobs
    known = {task.partition("_")[0] for task in queue.accounted}
    unsure = {job for job, name in state.slurm_arrays.items() if array in (None, name)} - known
    if unsure and not force:
        shown = ", ".join(sorted(unsure)[:5]) + (", ..." if len(unsure) > 5 else "")
        found = (
            f"jobs {shown}, which may have ended, so that their ids may be another's: Slurm does "
            f"not say ({queue.error})"
        )
        raise InputError("cancel", None, found, "to try again, or --force")
    return sorted({*jobs, *unsure})

"""What runs the arrays of a submission: Slurm, or this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from jobs.run.local_runs import LocalRun, start_supervisor, stop_supervisors
from jobs.run.run_folder import script_of
from jobs.run.run_state import RunState
from jobs.run.status import live_jobs
from jobs.run.submission import Submission
from jobs.slurm.batch_script import REPORT, report_script
from jobs.slurm.job_array import JobArray
from jobs.slurm.launch import Launch, slurm_limit
from jobs.slurm.queue import QueueAnswer, forget_answers, query_queue
from jobs.slurm.sbatch import Request, cancel_for_good, submit_script

Record = Callable[[JobArray, str], None]
"""Is called with each array and its job id as soon as it is submitted."""


class Scheduler(Protocol):
    """Submits arrays, says which of a run's jobs there are, and cancels them."""

    def submit(self, submission: Submission, paths: RunPaths, record: Record) -> list[str]:
        """Submit all arrays; returns a job id for each."""

    def query(self, state: RunState) -> QueueAnswer:
        """The jobs of a run as they are now."""

    def cancel(self, state: RunState, array: str | None, *, force: bool) -> list[str]:
        """Cancel a run's jobs, or those of one array; returns a line for each."""


class Slurm:
    """Job arrays by sbatch."""

    def submit(self, submission: Submission, paths: RunPaths, record: Record) -> list[str]:
        """Raises InputError where Slurm refuses the first array, and GnnhpcError for a later one.

        MaybeSubmittedError is raised where nobody can tell whether an array is submitted.
        """
        limit, tasks = slurm_limit("MaxJobCount"), submission.tasks
        if limit is not None and tasks > limit:
            allowed = f"at most {limit} jobs in this cluster's queue (MaxJobCount)"
            raise InputError("submit", None, f"{tasks} tasks", allowed)
        jobs: list[str] = []
        most = submission.launch.site.max_parallel
        for array in submission.arrays:
            waits = [*submission.dependencies]
            if submission.one_at_a_time and jobs:
                waits = [jobs[-1]]
            options = array.resources.options()
            given = [f"--array={array.array_option(most)}"]
            if waits:
                after = f"afterany:{':'.join(waits)}"
                of_site = options.get("dependency")
                given.append(f"--dependency={f'{of_site},{after}' if of_site else after}")
            script = script_of(submission, array, paths)
            try:
                job = submit_script(Request(script, paths.root, options, given))
            except GnnhpcError as error:
                if not jobs:
                    raise
                raise _after_some(error, submission, jobs, paths) from None
            jobs.append(job)
            record(array, job)
        return jobs

    def submit_report(self, paths: RunPaths, launch: Launch, jobs: list[str]) -> str:
        """Submit one task that writes the report when these jobs have ended, however they did."""
        text, needs = report_script(paths.root, launch)
        script = paths.script(REPORT)
        script.write_text(text, encoding="utf-8")
        given = [f"--dependency=afterany:{':'.join(jobs)}"]
        return submit_script(Request(script, paths.root, needs.options(), given))

    def query(self, state: RunState) -> QueueAnswer:
        return query_queue(state.paths.root, state.users, state.unfinished_jobs, fresh=True)

    def cancel(self, state: RunState, array: str | None, *, force: bool) -> list[str]:
        """Also cancels again what its ranks requeue while they save, for at most 45 seconds.

        `force` cancels all recorded jobs where Slurm does not say which of them have ended. Raises
        InputError for such jobs without it, and GnnhpcError if scancel refuses.
        """
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


class Local:
    """Cells one after another on this machine, run by a process that outlives this one.

    With `wait` the cells are for this process to run, once they are recorded.
    """

    def __init__(self, *, wait: bool = False) -> None:
        self.wait = wait

    def submit(self, submission: Submission, paths: RunPaths, record: Record) -> list[str]:
        """Raises GnnhpcError where the process cannot be started."""
        if self.wait:
            for array in submission.arrays:
                record(array, str(os.getpid()))
            return [str(os.getpid())] * len(submission.arrays)
        supervisor = start_supervisor(LocalRun.of(submission, paths))
        for array in submission.arrays:
            record(array, str(supervisor.pid))
        supervisor.begin()
        return [str(supervisor.pid)] * len(submission.arrays)

    def query(self, state: RunState) -> QueueAnswer:
        return QueueAnswer(time.time())

    def cancel(self, state: RunState, array: str | None, *, force: bool) -> list[str]:
        """Raises InputError for one array: a single process runs all of them."""
        pids = {int(one.job_id) for one in state.submissions if one.supervisor_is_alive}
        if array is not None and pids:
            allowed = "no --array, one process runs all of them"
            raise InputError("--array", None, "a local run", allowed)
        stop_supervisors(pids)
        return [f"local supervisor {pid}" for pid in sorted(pids)]


def _after_some(
    error: GnnhpcError, submission: Submission, jobs: list[str], paths: RunPaths
) -> GnnhpcError:
    """The error of a later array: the input is not refused, since arrays before it are in Slurm."""
    arrays = [array.name for array in submission.arrays]
    done = ", ".join(f"{name} as {job}" for name, job in zip(arrays, jobs, strict=False))
    paired = " --paired" if submission.arrays[0].is_paired else ""
    command = f"{as_typed('jobs', 'rerun')} {paths.root} --missing{paired}"
    kind = type(error) if not isinstance(error, InputError) else GnnhpcError
    return kind(f"{error}; submitted before that: {done}; the others: {command}")


def _jobs_to_cancel(state: RunState, array: str | None, *, force: bool) -> list[str]:
    """Jobs that Slurm says are this run's; with `force` also those that it does not mention."""
    jobs, queue = live_jobs(state, array)
    if queue.answered:
        return jobs
    known = {task.partition("_")[0] for task in queue.accounted}
    unsure = {job for job, name in state.slurm_arrays.items() if array in (None, name)} - known
    if unsure and not force:
        shown = ", ".join(sorted(unsure)[:5]) + (", ..." if len(unsure) > 5 else "")
        raise InputError(
            "cancel",
            None,
            f"jobs {shown}, which may have ended, so that their ids may be another's: Slurm does "
            f"not say ({queue.error})",
            "to try again, or --force",
        )
    return sorted({*jobs, *unsure})

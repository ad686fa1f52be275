"""Slurm as a scheduler: one job array for each model and layout, or for the blocks of a model."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from jobs.run.cell_state import MAY_RUN
from jobs.run.run_state import RunState
from jobs.run.status import ask_slurm, only_of_run, status
from jobs.run.submission_records import record_job
from jobs.slurm.partitions import longest_time_min
from jobs.slurm.sbatch import SubmitLimitError, cancel_jobs, submit_script
from jobs.slurm.squeue_and_sacct import QueueAnswer
from jobs.submit.run_folder import script_of
from jobs.submit.submission import Job, Options, Submission

POLL_S = 15.0
"""Pause between two questions about a run that is waited for."""


class Slurm:
    """Job arrays that sbatch takes."""

    job = "Slurm job"
    """What a job is called where its id is printed."""

    def check(self, submission: Submission, options: Options) -> None:
        """Raises InputError for an array that its partition would leave waiting without end."""
        site = submission.launch.site
        most = longest_time_min(site)
        for array in submission.arrays:
            needed = array.resources.time_min
            if most is None or needed <= most:
                continue
            count = max(len(task.cells) for task in array.tasks)
            found, allowed = site.time, f"at most {most} minutes in this partition"
            if array.is_paired:
                found += f", {needed} minutes for the {count} cells of a block of {array.name}"
                allowed += f": time {most // count} (minutes of a cell), or no --paired"
            raise InputError("site", "time", found, allowed)

    def submit(self, submission: Submission, paths: RunPaths) -> list[Job]:
        """Submit every array and record each as soon as it is in; the caller holds the run's lock.

        Under a limit of jobs an array goes in portions, as many tasks as Slurm takes. Raises
        InputError where this machine cannot submit, or the first array is refused, GnnhpcError for
        a later array, and MaybeSubmittedError where that remains unknown, or a job cannot be
        recorded.
        """
        for program in ("sbatch", "srun"):
            if shutil.which(program) is None:
                raise InputError("--cluster", None, f"slurm, but no {program} here", "local")
        done: list[Job] = []
        for array in submission.arrays:
            script, left, size = script_of(submission, array, paths), array.tasks, len(array.tasks)
            while left:
                portion = replace(array, tasks=left[:size])
                own = array.resources.options()
                tasks = portion.array_option(submission.launch.site.max_parallel)
                options = [f"--array={tasks}"]
                waits = submission.dependencies
                if submission.one_at_a_time and done:
                    waits = (done[-1][1],)
                if waits:
                    after = (own.get("dependency"), f"afterany:{':'.join(waits)}")
                    options.append(f"--dependency={','.join(str(each) for each in after if each)}")
                try:
                    job = submit_script(script, submission.run, own, options)
                except SubmitLimitError:
                    if size > 1:
                        size //= 2
                        continue
                    if done:
                        return done
                    raise
                except GnnhpcError as error:
                    if not done:
                        raise
                    names = ", ".join(f"{array.name} as {job}" for array, job in done)
                    command = as_typed("jobs", f"rerun {submission.run} --missing")
                    words = f"{error}; submitted before that: {names}; the others: {command}"
                    raise GnnhpcError(words) from None
                record_job(paths, "slurm", portion, job)
                done.append((portion, job))
                left = left[size:]
        return done

    def wait(self, submission: Submission) -> int:
        """Return when every cell has ended: how many did not end as done."""
        chosen, printed = {cell.id for cell in submission.cells}, ""
        while True:
            current = status(submission.run)
            if current.line != printed:
                printed = current.line
                print(f"{current.run.name}: {printed}", flush=True)
            cells = [cell for cell in current.cells if cell.cell in chosen]
            if not any(cell.state in MAY_RUN for cell in cells):
                return sum(cell.state != "done" for cell in cells)
            time.sleep(POLL_S)

    def query(self, state: RunState) -> Sequence[str]:
        """Ids of the run's jobs that wait or run; raises GnnhpcError where that is not known."""
        jobs, queue = _live_jobs(state)
        if not queue.answered and state.may_be_in_slurm:
            found = f"which jobs of {state.paths.root} are in its queue ({queue.error})"
            raise GnnhpcError(f"Slurm does not say {found}")
        return jobs

    def cancel(self, state: RunState, *, force: bool) -> Sequence[str]:
        """Cancel jobs that Slurm says are this run's; with `force` also all that are recorded.

        Returns their ids. Raises as `jobs.submit.submit.cancel`.
        """
        if not state.may_be_in_slurm:
            return []
        jobs, queue = _live_jobs(state)
        if not queue.answered:
            known = {task.partition("_")[0] for task in queue.accounted}
            unsure = state.unfinished_jobs.keys() - known
            if unsure and not force:
                found = f"jobs {', '.join(sorted(unsure))}, which may have ended ({queue.error})"
                allowed = "to try again, or --force: their ids may be another's now"
                raise InputError("cancel", None, found, allowed)
            jobs = sorted({*jobs, *unsure})
        if jobs:
            cancel_jobs(jobs)
        return jobs


def _live_jobs(state: RunState) -> tuple[list[str], QueueAnswer]:
    """Ids of the run's jobs that wait or run, and Slurm's answer.

    Where squeue does not answer they are those that the accounting has as waiting or running.
    """
    queue = only_of_run(state, ask_slurm([state]))
    found = {job.job_id for job in queue.jobs}
    if not queue.answered:
        live = (name for name, task in queue.accounted.items() if not task.has_ended)
        found = {task.partition("_")[0] for task in live}
    return sorted(found), queue

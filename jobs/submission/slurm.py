"""Slurm as a scheduler: one job array for each model and layout, or for the blocks of a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.experiment import Experiment
from jobs.run.cell_state import MAY_RUN
from jobs.run.run_jobs import live_jobs
from jobs.run.run_state import RunState
from jobs.run.status import status
from jobs.slurm.launch import (
    longest_limit_min,
    slurm_limit,
)
from jobs.slurm.queue import forget_answers
from jobs.slurm.sbatch import (
    SubmitLimitError,
    cancel_for_good,
    check_slurm,
    submit_script,
)
from jobs.submission.run_folder import script_of
from jobs.submission.scheduler import Job, Scheduler, Watch, record_job
from jobs.submission.submission import Submission

POLL_S = 15.0
"""Pause between two questions about a run that is waited for."""


class Slurm(Scheduler):
    """Job arrays that sbatch takes."""

    job = "Slurm job"

    def check_here(self, run: Path, experiments: Sequence[Experiment]) -> None:
        check_slurm(run)

    def check(self, submission: Submission) -> None:
        """Raises InputError for an array that its partition would leave waiting without end."""
        site = submission.launch.site
        most = longest_limit_min(site)
        for array in submission.arrays:
            needed, count = array.resources.time_min, array.most_cells
            if most is None or needed <= most:
                continue
            allowed = f"at most {most} minutes in this partition"
            if not array.is_paired:
                raise InputError("site", "time", site.time, allowed)
            block = f"the {count} cells of a block of {array.name}"
            found, each = f"{site.time}, {needed} minutes for {block}", most // count
            fits = each * 60 > site.signal
            smaller = f"time {each} (minutes of a cell)" if fits else "a sweep with smaller blocks"
            raise InputError("site", "time", found, f"{allowed}: {smaller}, or no --paired")

    def notes(self, submission: Submission) -> Iterator[str]:
        launch, site = submission.launch, submission.launch.site
        if not (site.python or site.activate or site.container) and launch.python != sys.executable:
            yield f"runs {launch.python}, as the run was submitted, not {sys.executable}"

    def summary(self, submission: Submission) -> Iterator[str]:
        site, hours = submission.launch.site, submission.most_core_hours
        line = f"at most {hours:.3g} core-hours, each task up to its time limit"
        if site.max_requeues:
            most = hours * (1 + site.max_requeues)
            line += f" ({most:.3g} if each is requeued as often as it may be)"
        yield f"{line}; whole nodes may have more CPUs" if site.exclusive else line
        layouts = {cell.experiment.layout for cell in submission.cells}
        if not submission.is_paired and len(layouts) > 1:
            yield (
                "advice: layouts run in jobs of their own, on other nodes and at other times; "
                "--paired runs all layouts of a repeat in one job, on the same nodes"
            )
        if not site.exclusive:
            yield ("advice: jobs may share nodes, which disturbs times; site key: exclusive: true")
        if submission.one_at_a_time:
            yield f"at most {site.max_parallel} cells at once: one array after another"

    def submit(self, submission: Submission, paths: RunPaths, *, wait: bool) -> list[Job]:
        """Under a limit of jobs an array goes in portions, as many tasks as Slurm takes."""
        limit, tasks = slurm_limit("MaxJobCount"), submission.tasks
        if limit is not None and tasks > limit:
            allowed = f"at most {limit} jobs in this cluster's queue (MaxJobCount)"
            raise InputError("submit", None, f"{tasks} tasks", allowed)
        done: list[Job] = []
        for array in submission.arrays:
            script, left, size = script_of(submission, array, paths), array.tasks, len(array.tasks)
            while left:
                portion = replace(array, tasks=left[:size])
                before = [done[-1][1]] if submission.one_at_a_time and done else None
                own = array.resources.options()
                given = [f"--array={portion.array_option(submission.launch.site.max_parallel)}"]
                given += _dependency(own, before or submission.dependencies)
                try:
                    job = submit_script(script, submission.run, own, given)
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
                    raise _after_some(error, submission, done) from None
                record_job(submission, paths, portion, job)
                forget_answers()
                done.append((portion, job))
                left = left[size:]
        return done

    def wait(self, submission: Submission, watch: Watch | None) -> int:
        chosen = {cell.id for cell in submission.cells}
        while True:
            current = status(submission.run)
            if watch is not None:
                watch(current)
            cells = [cell for cell in current.cells if cell.cell in chosen]
            if not any(cell.state in MAY_RUN for cell in cells):
                return sum(cell.state != "done" for cell in cells)
            time.sleep(POLL_S)

    def query(self, state: RunState) -> list[str]:
        if not state.submissions:
            return []
        jobs, queue = live_jobs(state)
        if not queue.answered:
            found = f"which jobs of {state.paths.root} are in its queue ({queue.error})"
            raise GnnhpcError(f"Slurm does not say {found}")
        return jobs

    def cancel(self, state: RunState, *, force: bool) -> list[str]:
        """For at most 45 seconds it also cancels what ranks requeue while they save."""
        jobs = _jobs_to_cancel(state, force=force) if state.may_be_in_slurm else []
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


def _dependency(own: Mapping[str, object], waits: Sequence[str]) -> list[str]:
    """The option that lets an array wait for jobs, besides what its site lets it wait for."""
    if not waits:
        return []
    after = f"afterany:{':'.join(waits)}"
    of_site = own.get("dependency")
    return [f"--dependency={f'{of_site},{after}' if of_site else after}"]


def _after_some(error: GnnhpcError, submission: Submission, done: Sequence[Job]) -> GnnhpcError:
    """The error of a later array: the input is not refused, since arrays before it are in Slurm."""
    names = ", ".join(f"{array.name} as {job}" for array, job in done)
    paired = " --paired" if submission.is_paired else ""
    command = as_typed("jobs", f"rerun {submission.run} --missing{paired}")
    kind = type(error) if not isinstance(error, InputError) else GnnhpcError
    return kind(f"{error}; submitted before that: {names}; the others: {command}")


def _jobs_to_cancel(state: RunState, *, force: bool) -> list[str]:
    """Jobs that Slurm says are this run's; with `force` also those that it does not mention."""
    jobs, queue = live_jobs(state)
    if queue.answered:
        return jobs
    unsure = state.slurm_arrays.keys() - {task.partition("_")[0] for task in queue.accounted}
    if unsure and not force:
        shown = ", ".join(sorted(unsure)[:5]) + (", ..." if len(unsure) > 5 else "")
        found = (
            f"jobs {shown}, which may have ended, so that their ids may be another's: Slurm does "
            f"not say ({queue.error})"
        )
        raise InputError("cancel", None, found, "to try again, or --force")
    return sorted({*jobs, *unsure})

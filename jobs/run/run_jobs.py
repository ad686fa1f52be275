"""Which of the jobs in Slurm's queue are a run's, and not those of a copy or of another user."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths
from jobs.run.run_state import RunState
from jobs.slurm.queue import QueueAnswer, QueuedJob, query_queue


def only_of_run(state: RunState, queue: QueueAnswer) -> QueueAnswer:
    """The answer with what it says about this run's jobs alone."""
    jobs = run_jobs(state, queue)
    others = {job.job_id for job in queue.jobs} - {job.job_id for job in jobs}
    accounted = {
        name: task for name, task in queue.accounted.items() if name.partition("_")[0] not in others
    }
    return replace(queue, jobs=jobs, accounted=accounted)


def run_jobs(state: RunState, queue: QueueAnswer) -> tuple[QueuedJob, ...]:
    """The run's jobs: those that name its folder, and by their ids those that name none.

    A run that was moved has jobs that name no folder. Jobs of the run that this one was copied from
    name that run, and another cluster may have other jobs under the ids of ours.
    """
    arrays, root = state.slurm_arrays, state.paths.root

    def is_of_run(job: QueuedJob) -> bool:
        named = _named_run(job)
        return arrays.get(job.job_id) == job.array if named is None else named.samefile(root)

    return tuple(filter(is_of_run, queue.jobs))


def live_jobs(state: RunState) -> tuple[list[str], QueueAnswer]:
    """Ids of the run's jobs that wait or run, and Slurm's answer.

    Where squeue does not answer they are those that the accounting has as waiting or running.
    """
    queue = query_queue(state.users, dict(state.slurm_arrays))
    found = {job.job_id for job in run_jobs(state, queue)}
    if not queue.answered:
        live = (task for task in queue.accounted if queue.accounts_as_live(task))
        found = {task.partition("_")[0] for task in live}
    return sorted(found), queue


def _named_run(job: QueuedJob) -> Path | None:
    """The run folder that a job's script lies in, else that its comment names, if it exists."""
    # A submission adds a token to the comment.
    comment = job.comment.strip()
    names = (comment, comment.rpartition(" [")[0])
    places = (Path(job.script).parents[1:2], map(Path, names))
    for place in chain(*places):
        if place.is_absolute() and RunPaths(place).manifest.is_file():
            return place
    return None

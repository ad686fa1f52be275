"""Which of the jobs in Slurm's queue are a run's, and not those of a copy or of another user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths
from jobs.run.run_state import RunState
from jobs.slurm.queue import QueueAnswer, QueuedJob, query_queue

Identity = tuple[int, int]
"""Inodes of a run folder and its manifest."""


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
    arrays = state.slurm_arrays
    here = _identity(state.paths.root)
    return tuple(
        job
        for job in queue.jobs
        if (named := _named_run(job)) == here
        or (named is None and arrays.get(job.job_id) == job.array)
    )


def live_jobs(state: RunState) -> tuple[list[str], QueueAnswer]:
    """Ids of the run's jobs that wait or run, and Slurm's answer.

    Where squeue does not answer they are those that the accounting has as waiting or running.
    """
    queue = query_queue(state.paths.root, state.users, dict(state.slurm_arrays), fresh=True)
    found = {job.job_id for job in run_jobs(state, queue)}
    if not queue.answered:
        live = (task for task in queue.accounted if queue.accounts_as_live(task))
        found = {task.partition("_")[0] for task in live}
    return sorted(found), queue


def _named_run(job: QueuedJob) -> Identity | None:
    """The run folder that a job's script lies in, else that its comment names, if it exists."""
    script, comment = Path(job.script), job.comment.strip()
    places = [script.parent.parent] if script.parent.name == "arrays" else []
    # A submission adds a token to the comment.
    for place in (*places, Path(comment), Path(comment.rpartition(" [")[0])):
        if place.is_absolute() and (found := _identity(place)) is not None:
            return found
    return None


def _identity(place: Path) -> Identity | None:
    """What distinguishes a run folder from its copies, by whatever path it is reached."""
    try:
        return (place.stat().st_ino, RunPaths(place).manifest.stat().st_ino)
    except OSError:
        return None

"""The status of a run: the state of every cell, from its folder and one question to Slurm."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.core.run_paths import RunPaths
from jobs.run.cell_state import MAY_RUN, STATES, UNFINISHED, CellState
from jobs.run.run_state import RunState, read_run
from jobs.run.state_table import cell_states
from jobs.slurm.queue import QueueAnswer, QueuedJob, query_queue

Identity = tuple[int, int]


@dataclass(frozen=True)
class RunStatus:
    """All cells of a run, in the manifest's order."""

    state: RunState
    cells: tuple[CellState, ...]
    slurm: str
    """When Slurm was asked about queued jobs, or why it was not."""

    @property
    def run(self) -> Path:
        return self.state.paths.root

    @property
    def paired(self) -> bool:
        """Whether blocks hold all of its cells."""
        return {cell.key for cell in self.state.cells} <= self.state.blocks.of_cell.keys()

    @property
    def mem(self) -> str | None:
        """Memory of a node that the newest submission asked for."""
        submissions = self.state.submissions
        return submissions[-1].site.get("mem") if submissions else None

    def counts(self) -> dict[str, int]:
        """How many cells are in each state, in the order of `STATES`."""
        found = {state: sum(cell.state == state for cell in self.cells) for state in STATES}
        return {state: count for state, count in found.items() if count}

    def arrays(self) -> dict[str, list[CellState]]:
        grouped: dict[str, list[CellState]] = {}
        for cell in self.cells:
            grouped.setdefault(cell.array, []).append(cell)
        return grouped

    def custom_models_to_correct(self) -> dict[str, str]:
        """Cell id -> its custom model, where that failed or differs from its reference."""
        wrong = {
            one.cell for one in self.cells if one.state == "failed" or "engine-parity" in one.flags
        }
        models = {cell.id: cell.settings.get("model", {}) for cell in self.state.cells}
        named = ((cell, str(model.get("name"))) for cell, model in models.items())
        return {cell: name for cell, name in named if cell in wrong and ":" in name}

    @property
    def live(self) -> bool:
        """Whether a cell runs or waits, or may."""
        return any(cell.state in MAY_RUN for cell in self.cells)

    @property
    def complete(self) -> bool:
        """Whether every cell is done and valid."""
        return all(cell.state == "done" for cell in self.cells)


def status(run: str | Path, *, fresh: bool = False) -> RunStatus:
    """The state of every cell; asks Slurm at most once in ten seconds, and works without it.

    `fresh` asks Slurm now: before an action an answer of ten seconds ago is too old. Raises
    InputError as `read_run` does.
    """
    return status_of(read_run(run), fresh=fresh)


def status_of(state: RunState, *, fresh: bool = False) -> RunStatus:
    """The state of every cell of a run that has been read."""
    queue = QueueAnswer(time.time(), error="no job in Slurm")
    if state.may_be_in_slurm:
        queue = query_queue(state.paths.root, state.users, state.unfinished_jobs, fresh=fresh)
    return run_status(state, queue)


def run_status(state: RunState, queue: QueueAnswer) -> RunStatus:
    """The state of every cell, as the run's files and this answer of Slurm's have it."""
    queue = only_of_run(state, queue)
    cells = {cell.cell: cell for cell in cell_states(state, queue)}
    # Slurm was asked after the files were read: a cell that ended in between has its result now.
    doubtful = [cell for cell in state.cells if cells[cell.id].state in UNFINISHED]
    if doubtful:
        again = cell_states(state.read_again(doubtful), queue, doubtful)
        cells |= {cell.cell: cell for cell in again}
    return RunStatus(state, tuple(cells.values()), _asked(state, queue))


def _asked(state: RunState, queue: QueueAnswer) -> str:
    if state.submissions and not state.slurm_arrays and not queue.jobs:
        return "local run"
    if queue.error is None:
        return f"Slurm asked {max(0.0, time.time() - queue.at):.0f} s ago"
    return f"{queue.error}; sacct did answer" if queue.accounted else queue.error


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

"""The status of a run, and of all runs of a folder, from their files and one question to Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from jobs.run.cell_state import MAY_RUN, STATES, UNFINISHED, CellState, cell_states
from jobs.run.run_state import RunState, read_run
from jobs.slurm.squeue_and_sacct import QueueAnswer, QueuedJob, query_queue


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

    def counts(self) -> dict[str, int]:
        """How many cells are in each state, in the order of `STATES`."""
        found = {state: sum(cell.state == state for cell in self.cells) for state in STATES}
        return {state: count for state, count in found.items() if count}

    @property
    def line(self) -> str:
        """The counts of all states in one line."""
        return ", ".join(f"{count} {state}" for state, count in self.counts().items())

    @property
    def live(self) -> bool:
        """Whether a cell runs or waits, or may."""
        return any(cell.state in MAY_RUN for cell in self.cells)

    @property
    def complete(self) -> bool:
        """Whether every cell is done and valid."""
        return all(cell.state == "done" for cell in self.cells)


def status(run: str | Path | RunState, *, kept: bool = False) -> RunStatus:
    """The state of every cell of a run, which may have been read; works without Slurm too.

    `kept` says that Slurm's answer of the last ten seconds will do. Raises InputError as `read_run`
    does.
    """
    state = run if isinstance(run, RunState) else read_run(run)
    return _run_status(state, ask_slurm([state], state.paths.root if kept else None))


def ask_slurm(states: Iterable[RunState], kept_for: Path | None = None) -> QueueAnswer:
    """One answer about the jobs of all these runs."""
    asking = [state for state in states if state.may_be_in_slurm]
    if not asking:
        return QueueAnswer(time.time(), error="no job in Slurm")
    jobs = {job: array for state in asking for job, array in state.unfinished_jobs.items()}
    users = {name for state in asking for name in state.users}
    return query_queue(users, jobs, kept_for=kept_for)


def _run_status(state: RunState, queue: QueueAnswer) -> RunStatus:
    """The state of every cell, as the run's files and this answer of Slurm's have it."""
    queue = only_of_run(state, queue)
    cells = cell_states(state, queue)
    # Slurm was asked after the files were read: a cell that ended in between has its result now.
    if any(cell.state in UNFINISHED for cell in cells):
        state = read_run(state.paths.root)
        cells = cell_states(state, queue)
    return RunStatus(state, tuple(cells), _asked(state, queue))


def only_of_run(state: RunState, queue: QueueAnswer) -> QueueAnswer:
    """The answer with this run's jobs alone.

    They are those whose script lies in its folder, and by their ids those of a run that was moved.
    Scripts of the run that this one was copied from lie in that run, and another cluster may have
    other jobs under the ids of ours.
    """

    def is_of_run(job: QueuedJob) -> bool:
        folder = Path(job.script).parent.parent
        if folder.is_absolute() and RunPaths(folder).manifest.is_file():
            return folder.samefile(state.paths.root)
        return state.slurm_arrays.get(job.job_id) == job.array

    return replace(queue, jobs=tuple(filter(is_of_run, queue.jobs)))


def _asked(state: RunState, queue: QueueAnswer) -> str:
    if state.submissions and not state.slurm_arrays and not queue.jobs:
        return "local run"
    if queue.error is None:
        return f"Slurm asked {max(0.0, time.time() - queue.at):.0f} s ago"
    return f"{queue.error}; sacct did answer" if queue.accounted else queue.error


def known_runs(folder: Path) -> dict[Path, RunStatus | str]:
    """The runs in a folder, newest first, with their status; of damaged ones what is wrong.

    Slurm is asked once for all of them. Raises InputError if the folder cannot be read.
    """
    try:
        manifests = [RunPaths(path).manifest for path in folder.iterdir() if path.name[0] != "."]
        manifests = [path for path in manifests if path.is_file()]
        manifests.sort(key=lambda path: (-path.stat().st_mtime, path.parent.name))
    except OSError as error:
        found = f"{error.filename or folder}: {error.strerror}"
        raise InputError("--runs", None, found, "a folder of runs") from None
    read = {path.parent: _read_or_damage(path.parent) for path in manifests}
    states = (one for one in read.values() if isinstance(one, RunState))
    queue = ask_slurm(states, folder.absolute())
    return {
        run: one if isinstance(one, str) else _run_status(one, queue) for run, one in read.items()
    }


def _read_or_damage(run: Path) -> RunState | str:
    try:
        return read_run(run)
    except InputError as error:
        return str(error).replace(f"{run.absolute()}/", "")

"""The status of a run: the state of every cell, from its folder and one question to Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.submissions import read_provenance
from jobs.run.cell_evidence import CellState
from jobs.run.cell_state import MAY_RUN, STATES, UNFINISHED, cell_states
from jobs.run.run_state import RunState, read_run
from jobs.slurm.queue import QueueAnswer, QueuedJob, query_queue

Identity = tuple[int, int]


@dataclass(frozen=True)
class RunStatus:
    """All cells of a run, in the manifest's order."""

    run: Path
    cells: tuple[CellState, ...]
    slurm: str
    """When Slurm was asked about queued jobs, or why it was not."""
    paired: bool = False
    """Whether blocks hold all of its cells."""
    custom_models: Mapping[str, str] = field(default_factory=dict)
    """Cell id -> the custom model that it trains."""
    mem: str | None = None
    """Memory of a node that the newest submission asked for."""

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
        return {
            cell.cell: self.custom_models[cell.cell]
            for cell in self.cells
            if cell.cell in self.custom_models
            and (cell.state == "failed" or "engine-parity" in cell.flags)
        }

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
        since = time.time() if fresh else state.last_submission_s
        queue = query_queue(state.paths.root, state.users, state.unfinished_jobs, since=since)
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
    keys = {(cell.array, cell.index) for cell in state.cells}
    models = {cell.id: str(cell.settings.get("model", {}).get("name")) for cell in state.cells}
    newest = state.submissions[-1].site if state.submissions else {}
    return RunStatus(
        state.paths.root,
        tuple(cells.values()),
        _asked(state, queue),
        paired=keys <= state.blocks.block_of.keys(),
        custom_models={cell: name for cell, name in models.items() if ":" in name},
        mem=newest.get("mem"),
    )


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
    queue = query_queue(state.paths.root, state.users, dict(state.slurm_arrays), since=time.time())
    found = {job.job_id for job in run_jobs(state, queue)}
    if not queue.answered:
        live = (task for task in queue.accounted if queue.accounts_as_live(task))
        found = {task.partition("_")[0] for task in live}
    return sorted(found), queue


@dataclass(frozen=True)
class KnownRun:
    """One run as `list` shows it."""

    run: Path
    created_at: float
    """Seconds since the epoch."""
    size: int | None
    """Bytes on disk; None where a part of the folder is unreadable."""
    status: RunStatus | None
    """None for a damaged folder."""
    damage: str | None = None
    """What is wrong with the folder, in one line."""


def known_runs(folder: Path) -> list[KnownRun]:
    """The runs in a folder, newest first, damaged ones too; other folders are left out.

    Slurm is asked once for all of them. Raises InputError if the folder cannot be read.
    """
    try:
        runs = sorted(path for path in folder.iterdir() if _looks_like_a_run(path))
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        raise InputError("--runs", None, found, "a folder of runs") from None
    read = {run: _read_or_damage(run) for run in runs}
    states = [one for one in read.values() if isinstance(one, RunState)]
    asking = [one for one in states if one.unfinished and one.may_be_in_slurm]
    queue = QueueAnswer(time.time(), error="not asked")
    if asking:
        jobs = {job: array for state in asking for job, array in state.unfinished_jobs.items()}
        users = {name for state in asking for name in state.users}
        since = max(state.last_submission_s for state in asking)
        queue = query_queue(folder.absolute(), users, jobs, since=since)
    found_runs = [_known_run(run, one, queue) for run, one in read.items()]
    return sorted(found_runs, key=lambda one: (-one.created_at, one.run.name))


def _known_run(run: Path, read: RunState | str, queue: QueueAnswer) -> KnownRun:
    try:
        facts = read_provenance(RunPaths(run)) or {}
        created_at = datetime.fromisoformat(str(facts["created_at"])).timestamp()
    except (InputError, OSError, KeyError, ValueError):
        created_at = run.stat().st_mtime
    if isinstance(read, str):
        return KnownRun(run, created_at, disk_use(run), None, read)
    return KnownRun(run, created_at, disk_use(run), run_status(read, queue))


def _looks_like_a_run(path: Path) -> bool:
    """Whether it has a file that only submitted runs have; one that nobody may enter may be one.

    A folder of runs by hand has cells, and neither a manifest nor provenance.
    """
    paths = RunPaths(path)
    if path.name.startswith(".") or not path.is_dir():
        return False
    try:
        files = (paths.manifest, paths.provenance, paths.submissions)
        return any(file.exists() for file in files)
    except OSError:
        return True


def _read_or_damage(run: Path) -> RunState | str:
    try:
        return read_run(run)
    except InputError as error:
        return str(error).replace(f"{run.absolute()}/", "")
    except OSError as error:
        return f"{error.filename or run}: unreadable ({error.strerror})"


def disk_use(path: Path) -> int | None:
    """Bytes that a file, or a folder and all in it, takes; None where a part is unreadable.

    Symbolic links are not followed; what is deleted meanwhile counts nothing.
    """
    try:
        # st_blocks counts 512 bytes each, whatever the file system's own blocks are.
        total = path.lstat().st_blocks * 512
        if path.is_symlink() or not path.is_dir():
            return total
        with os.scandir(path) as entries:
            sizes = [disk_use(Path(entry.path)) for entry in entries]
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return None if None in sizes else total + sum(size or 0 for size in sizes)

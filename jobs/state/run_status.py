"""The status of a run: the state of every cell, with one look at its folders and at Slurm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.slurm_queue import NO_SLURM, QueueAnswer, QueuedJob, query_queue
from jobs.folder.attempt_files import ManifestEntry
from jobs.folder.run_blocks import Key
from jobs.folder.submission_records import SubmissionRecord
from jobs.state.block_turns import block_turns
from jobs.state.cell_state import cell_status, job_number
from jobs.state.run_reading import ReadRun, read_cell, read_run, slurm_users
from jobs.state.states import MAY_RUN, STATES, UNFINISHED, CellStatus, JobLookup

Identity = tuple[int, int]


@dataclass(frozen=True)
class RunStatus:
    """All cells of a run, in the manifest's order."""

    run: Path
    cells: tuple[CellStatus, ...]
    slurm: str
    """When Slurm was asked about queued jobs, or why it was not."""
    paired: bool = False
    """Whether blocks hold all of its cells."""

    def counts(self) -> dict[str, int]:
        found = Counter(cell.state for cell in self.cells)
        return {state: found[state] for state in STATES if found[state]}

    def arrays(self) -> dict[str, list[CellStatus]]:
        grouped: dict[str, list[CellStatus]] = {}
        for cell in self.cells:
            grouped.setdefault(cell.array, []).append(cell)
        return grouped

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

    `fresh`: asks Slurm now, as before an action an answer of ten seconds ago is too old.

    Raises InputError if the folder is no run, or its manifest, submissions or blocks are damaged.
    """
    return _ask_and_judge(read_run(run), fresh=fresh)


def status_of_cell(paths: RunPaths, entry: ManifestEntry) -> CellStatus:
    """The state of one cell of a run; asks Slurm as seldom as `status`."""
    return _ask_and_judge(read_cell(paths, entry), fresh=False).cells[0]


def _ask_and_judge(read: ReadRun, *, fresh: bool) -> RunStatus:
    if not read.may_be_in_slurm:
        return judge(read, QueueAnswer(time.time(), error="no job in Slurm"))
    return judge(read, query_queue(read.paths.root, read.users, read.jobs, fresh=fresh))


def judge(read: ReadRun, answer: QueueAnswer) -> RunStatus:
    """The state of every cell, as the run's files and this answer of Slurm's tell it."""
    slurm = read.in_slurm
    answer = _of_this_run(read, answer)
    silent = not answer.answered and read.may_be_in_slurm
    silent = silent and (slurm or answer.error != NO_SLURM)
    queued = _queued_cells(read, answer.jobs) if read.may_be_in_slurm else {}
    turns = block_turns(read, queued, answer)
    lookup = JobLookup(
        answer,
        silent,
        queued,
        read.supervised,
        read.submitted,
        read.blocks,
        turns,
        read.heard_elsewhere,
    )
    cells = tuple(_cell_status(entry, read, lookup) for entry in read.entries)
    told = answer.error or f"Slurm asked {max(0.0, time.time() - answer.at):.0f} s ago"
    told += "; sacct did answer" if answer.error and answer.accounted else ""
    local = bool(read.submissions) and not slurm and not answer.jobs
    paired = {(cell.array, cell.index) for cell in cells} <= read.blocks.in_blocks
    return RunStatus(read.paths.root, cells, "local run" if local else told, paired)


def _cell_status(entry: ManifestEntry, read: ReadRun, lookup: JobLookup) -> CellStatus:
    """The state of one cell.

    Slurm was asked after the files were read: a cell that ended in between has its result now.
    """
    attempts, result = read.attempts_of.get(entry.id, []), read.results.get(entry.id)
    found = cell_status(entry, attempts, result, lookup)
    if found.state not in UNFINISHED:
        return found
    again = read.read_again(entry)
    return found if again == (attempts, result) else cell_status(entry, *again, lookup)


def _of_this_run(read: ReadRun, answer: QueueAnswer) -> QueueAnswer:
    """The answer with what it says of this run's jobs alone.

    As none of the queue's if it does not say which tasks one of them has.
    """
    own = _own_jobs(read.paths, answer, read.submissions)
    others = {job.job_id for job in answer.jobs} - {job.job_id for job in own}
    error = answer.error
    for job in own:
        if job.is_unreadable:
            said = f"squeue lists {job.job_id}_[{job.indices}], and not which tasks these are"
            error = error or said
    accounted = {
        task: word
        for task, word in answer.accounted.items()
        if task.partition("_")[0] not in others
    }
    return replace(answer, jobs=own, accounted=accounted, error=error)


def _queued_cells(read: ReadRun, jobs: Iterable[QueuedJob]) -> dict[Key, QueuedJob]:
    """Queued jobs by cell, the newest where there are several; a block's is that of all its cells.

    A cell that failed in a block may be measured again, alone, while the block still runs.
    """
    return {
        key: job
        for job in sorted(jobs, key=lambda job: job_number(job.job_id))
        for index in job.index_list()
        for key in read.blocks.keys(job.array, index)
    }


def _own_jobs(
    paths: RunPaths, answer: QueueAnswer, submissions: list[SubmissionRecord]
) -> tuple[QueuedJob, ...]:
    """The run's jobs: those that say so, and by their ids those that name no run that is there.

    A run that was moved has such jobs. Those of the run that it was copied from it has not, nor
    those that another cluster, or the same one years later, has under the ids of ours.
    """
    ids = slurm_arrays(submissions)
    here = _identity(paths.root)
    return tuple(
        job
        for job in answer.jobs
        if (named := _named_run(job)) == here
        or (named is None and ids.get(job.job_id) == job.array)
    )


def _named_run(job: QueuedJob) -> Identity | None:
    """The run folder that a job's script lies in, else that its comment names, if it is there.

    The scripts in a copied folder still name the first one.
    """
    script = Path(job.script)
    places = [script.parent.parent] if script.parent.name in ("arrays", ".submitit") else []
    for place in (*places, Path(job.comment.strip())):
        if place.is_absolute() and (found := _identity(place)) is not None:
            return found
    return None


def _identity(place: Path) -> Identity | None:
    """What tells a run folder from its copies, by whatever path or mount it is reached."""
    try:
        return (place.stat().st_ino, RunPaths(place).manifest.stat().st_ino)
    except OSError:
        return None


def slurm_arrays(submissions: Iterable[SubmissionRecord]) -> dict[str, str]:
    """The arrays of the jobs that were submitted to Slurm, by job id."""
    return {s.job_id: s.array for s in submissions if s.cluster == "slurm"}


def live_slurm_jobs(
    paths: RunPaths, submissions: list[SubmissionRecord], array: str | None = None
) -> tuple[list[str], QueueAnswer]:
    """Ids of this run's jobs that wait or run, and Slurm's answer that says so.

    Of all arrays, a job that writes a report too. Where squeue does not answer they are those that
    the accounting has as such.
    """
    arrays = slurm_arrays(submissions)
    answer = query_queue(paths.root, slurm_users(submissions), dict(arrays), fresh=True)
    found = {
        job.job_id
        for job in _own_jobs(paths, answer, submissions)
        if array is None or (job.indices and job.array == array)
    }
    if not answer.answered:
        accounted = {
            task.partition("_")[0] for task in answer.accounted if answer.accounted_as_live(task)
        }
        found = {job for job in accounted if array in (None, arrays.get(job))}
    return sorted(found), answer

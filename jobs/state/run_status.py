"""The status of a run: the state of every cell, with one look at its folders and at Slurm."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.records.provenance import user
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.slurm_queue import NO_SLURM, QueueAnswer, QueuedJob, query_queue
from jobs.folder.attempt_files import ManifestEntry
from jobs.folder.run_blocks import Key
from jobs.folder.submission_records import SubmissionRecord
from jobs.state.block_turns import block_turns
from jobs.state.cell_state import cell_status, job_number
from jobs.state.run_reading import ReadRun, read_cell, read_run
from jobs.state.states import MAY_RUN, STATES, CellStatus, JobLookup


@dataclass(frozen=True)
class RunStatus:
    """All cells of a run, in the manifest's order."""

    run: Path
    cells: tuple[CellStatus, ...]
    slurm: str
    """When Slurm was asked about queued jobs, or why it was not."""

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
    answer = _without_doubt(read, answer)
    silent = not answer.answered and read.may_be_in_slurm
    silent = silent and (slurm or answer.error != NO_SLURM)
    queued = _queued_cells(read, answer) if read.may_be_in_slurm else {}
    turns = block_turns(read, queued, answer)
    lookup = JobLookup(answer, silent, queued, read.supervised, read.submitted, read.blocks, turns)
    cells = tuple(
        cell_status(entry, read.attempts_of.get(entry.id, []), read.results.get(entry.id), lookup)
        for entry in read.entries
    )
    told = answer.error or f"Slurm asked {max(0.0, time.time() - answer.at):.0f} s ago"
    told += "; sacct did answer" if answer.error and answer.accounted else ""
    return RunStatus(read.paths.root, cells, told if slurm or answer.jobs else "local run")


def _without_doubt(read: ReadRun, answer: QueueAnswer) -> QueueAnswer:
    """The answer, as none of the queue's if it does not say which tasks a job of the run has."""
    for job in _own_jobs(read.paths, answer, read.submissions):
        if job.is_unreadable and answer.answered:
            said = f"squeue lists {job.job_id}_[{job.indices}], and not which tasks these are"
            return replace(answer, error=said)
    return answer


def _queued_cells(read: ReadRun, answer: QueueAnswer) -> dict[Key, QueuedJob]:
    """Queued jobs by cell, the newest where there are several; a block's is that of all its cells.

    A cell that failed in a block may be measured again, alone, while the block still runs.
    """
    own = _own_jobs(read.paths, answer, read.submissions)
    return {
        key: job
        for job in sorted(own, key=lambda job: job_number(job.job_id))
        for index in job.index_list()
        for key in read.blocks.keys(job.array, index)
    }


def _own_jobs(
    paths: RunPaths, answer: QueueAnswer, submissions: list[SubmissionRecord]
) -> Iterator[QueuedJob]:
    """The run's jobs: known by job id, or, if submitted by hand, by script or comment."""
    ids = slurm_arrays(submissions)
    roots = {str(paths.root), os.path.realpath(paths.root)}
    for job in answer.jobs:
        home = os.path.realpath(Path(job.script).parent.parent)
        # Another cluster, or the same one years later, has other jobs under the ids of ours.
        is_ours = ids.get(job.job_id) == job.array
        if is_ours or home in roots or job.comment.strip() in roots:
            yield job


def _is_of(paths: RunPaths, job: QueuedJob) -> bool:
    return job.comment.strip() in (str(paths.root), os.path.realpath(paths.root))


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
    users = {submission.user for submission in submissions if submission.cluster == "slurm"}
    answer = query_queue(paths.root, users or {user()}, dict(arrays), fresh=True)
    own = list(_own_jobs(paths, answer, submissions))
    found = {job.job_id for job in own if job.indices and array in (None, job.array)}
    if array is None:
        found |= {job.job_id for job in answer.jobs if not job.indices and _is_of(paths, job)}
    if not answer.answered:
        accounted = {
            task.partition("_")[0] for task in answer.accounted if answer.accounted_as_live(task)
        }
        found = {job for job in accounted if array in (None, arrays.get(job))}
    return sorted(found), answer

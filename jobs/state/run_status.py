"""The status of a run: the state of every cell, with one look at its folders and at Slurm."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.records.provenance import user
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from jobs.cluster.slurm_queue import NO_SLURM, QueueAnswer, QueuedJob, query_queue
from jobs.folder.attempt_files import (
    AttemptResult,
    ManifestEntry,
    list_attempts,
    read_attempt_process,
    read_attempt_result,
    read_manifest_entries,
)
from jobs.folder.locked_files import open_run
from jobs.folder.submission_records import SubmissionRecord, read_submissions, supervisor_is_alive
from jobs.state.cell_state import cell_status
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

    Raises InputError if the folder is no run, or its manifest or submissions are damaged.
    """
    paths = open_run(run)
    entries = read_manifest_entries(paths.manifest)
    submissions = read_submissions(paths)
    attempts_of = list_attempts(paths)
    results = {
        entry.id: _deciding_result(attempts_of[entry.id])
        for entry in entries
        if entry.id in attempts_of
    }
    lookup = _look_up_jobs(paths, entries, submissions, results, attempts_of, fresh=fresh)
    cells = tuple(
        cell_status(entry, attempts_of.get(entry.id, []), results.get(entry.id), lookup)
        for entry in entries
    )
    answer = lookup.answer
    slurm = answer.error or f"Slurm asked {max(0.0, time.time() - answer.at):.0f} s ago"
    slurm += "; sacct did answer" if answer.error and answer.accounted else ""
    return RunStatus(paths.root, cells, slurm if _uses_slurm(submissions, answer) else "local run")


def _uses_slurm(submissions: list[SubmissionRecord], answer: QueueAnswer) -> bool:
    return bool(answer.jobs) or any(submission.cluster == "slurm" for submission in submissions)


def _deciding_result(attempts: list[AttemptPaths]) -> AttemptResult | None:
    """The newest valid result, else that of the newest attempt if it has one."""
    first: AttemptResult | None = None
    for number, attempt in enumerate(attempts):
        result = read_attempt_result(attempt)
        if result is not None and result.valid:
            return result
        if number == 0:
            first = result
    return first


def _look_up_jobs(
    paths: RunPaths,
    entries: list[ManifestEntry],
    submissions: list[SubmissionRecord],
    results: Mapping[str, AttemptResult | None],
    attempts_of: Mapping[str, list[AttemptPaths]],
    *,
    fresh: bool,
) -> JobLookup:
    submitted = {(s.array, index): s for s in submissions for index in s.index_list()}
    supervised = {key: s for key, s in submitted.items() if supervisor_is_alive(s)}
    unfinished = [e for e in entries if not ((result := results.get(e.id)) and result.valid)]
    slurm = [s for s in submissions if s.cluster == "slurm"]
    # Unfinished cells without a supervisor may have been submitted by hand.
    if not slurm and (supervised or not unfinished):
        answer = QueueAnswer(time.time(), error="no job in Slurm")
        return JobLookup(answer, supervised=supervised, submitted=submitted)
    users = {s.user for s in slurm} or {user()}
    arrays: dict[str, str | None] = dict.fromkeys(
        _jobs_of_attempts(
            attempts_of[entry.id][0] for entry in unfinished if attempts_of.get(entry.id)
        )
    )
    arrays |= {
        submission.job_id: submission.array
        for entry in unfinished
        if (submission := submitted.get((entry.array, entry.index)))
        and submission.cluster == "slurm"
    }
    answer = query_queue(paths.root, users, arrays, fresh=fresh)
    silent = not answer.answered and (bool(slurm) or answer.error != NO_SLURM)
    queued = _queued_cells(paths, answer, submissions)
    return JobLookup(answer, silent, queued, supervised, submitted)


def _jobs_of_attempts(newest: Iterable[AttemptPaths]) -> set[str]:
    """Ids of the jobs that made these attempts; jobs submitted by hand have no other record."""
    processes = [read_attempt_process(attempt) for attempt in newest]
    return {process.job.partition("_")[0] for process in processes if process and process.job}


def _queued_cells(
    paths: RunPaths, answer: QueueAnswer, submissions: list[SubmissionRecord]
) -> dict[tuple[str, int], QueuedJob]:
    """Queued jobs by cell: known by job id, or, if submitted by hand, by script or comment."""
    ids = slurm_arrays(submissions)
    roots = {str(paths.root), os.path.realpath(paths.root)}
    queued: dict[tuple[str, int], QueuedJob] = {}
    for job in answer.jobs:
        home = os.path.realpath(Path(job.script).parent.parent)
        # Another cluster, or the same one years later, has other jobs under the ids of ours.
        is_ours = ids.get(job.job_id) == job.array
        if is_ours or home in roots or job.comment.strip() in roots:
            queued |= {(job.array, index): job for index in job.index_list()}
    return queued


def slurm_arrays(submissions: Iterable[SubmissionRecord]) -> dict[str, str]:
    """The arrays of the jobs that were submitted to Slurm, by job id."""
    return {s.job_id: s.array for s in submissions if s.cluster == "slurm"}


def live_slurm_jobs(
    paths: RunPaths, submissions: list[SubmissionRecord], array: str | None = None
) -> tuple[list[str], QueueAnswer]:
    """Ids of this run's jobs that wait or run, and Slurm's answer that says so.

    Where squeue does not answer they are those that the accounting has as such.
    """
    arrays = slurm_arrays(submissions)
    users = {submission.user for submission in submissions if submission.cluster == "slurm"}
    answer = query_queue(paths.root, users or {user()}, dict(arrays), fresh=True)
    queued = _queued_cells(paths, answer, submissions)
    found = {job.job_id for (name, _), job in queued.items() if array in (None, name)}
    if not answer.answered:
        accounted = {
            task.partition("_")[0] for task in answer.accounted if answer.accounted_as_live(task)
        }
        found = {job for job in accounted if array in (None, arrays.get(job))}
    return sorted(found), answer

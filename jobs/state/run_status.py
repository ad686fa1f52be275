"""The status of a run: the state of every cell, with one look at its folders and at Slurm."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gnnhpc.records.paths import AttemptPaths, RunPaths
from gnnhpc.records.provenance import user
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob, query_queue
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
from jobs.state.cell_state import LIVE, STATES, CellStatus, JobLookup, cell_status


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
        return any(cell.state in LIVE for cell in self.cells)


def status(run: str | Path) -> RunStatus:
    """The state of every cell; asks Slurm at most once in ten seconds, and works without it.

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
    lookup = _look_up_jobs(paths, entries, submissions, results, attempts_of)
    cells = tuple(
        cell_status(entry, attempts_of.get(entry.id, []), results.get(entry.id), lookup)
        for entry in entries
    )
    answer = lookup.answer
    slurm = answer.error or f"Slurm asked {max(0.0, time.time() - answer.at):.0f} s ago"
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
) -> JobLookup:
    submitted = {(s.array, index): s for s in submissions for index in s.index_list()}
    supervised = {key: s for key, s in submitted.items() if supervisor_is_alive(s)}
    unfinished = [e for e in entries if not ((result := results.get(e.id)) and result.valid)]
    slurm = [s for s in submissions if s.cluster == "slurm"]
    # Cells without a result or supervisor may have been submitted by hand.
    maybe_by_hand = any(results.get(e.id) is None for e in unfinished) and not supervised
    if not slurm and not maybe_by_hand:
        return JobLookup(
            QueueAnswer(time.time(), error="no job in Slurm"), {}, supervised, submitted
        )
    users = {s.user for s in slurm} or {user()}
    job_ids = {
        submission.job_id
        for entry in unfinished
        if (submission := submitted.get((entry.array, entry.index)))
        and submission.cluster == "slurm"
    }
    job_ids |= _jobs_of_attempts(
        attempts_of[entry.id][0] for entry in unfinished if attempts_of.get(entry.id)
    )
    answer = query_queue(paths.root, users, job_ids)
    queued = _queued_cells(paths, answer, submissions)
    return JobLookup(answer, queued, supervised, submitted)


def _jobs_of_attempts(newest: Iterable[AttemptPaths]) -> set[str]:
    """Ids of the jobs that made these attempts; jobs submitted by hand have no other record."""
    processes = [read_attempt_process(attempt) for attempt in newest]
    return {process.job.partition("_")[0] for process in processes if process and process.job}


def _queued_cells(
    paths: RunPaths, answer: QueueAnswer, submissions: list[SubmissionRecord]
) -> dict[tuple[str, int], QueuedJob]:
    """Queued jobs by cell: known by job id, or, if submitted by hand, by script or comment."""
    ids = {
        submission.job_id: submission.array
        for submission in submissions
        if submission.cluster == "slurm"
    }
    roots = {str(paths.root), os.path.realpath(paths.root)}
    queued: dict[tuple[str, int], QueuedJob] = {}
    for job in answer.jobs:
        array = ids.get(job.job_id)
        home = os.path.realpath(Path(job.script).parent.parent)
        if array is None and (home in roots or job.comment.strip() in roots):
            array = job.name.partition("@")[0]
        if array is not None:
            queued |= {(array, index): job for index in job.index_list()}
    return queued


def live_slurm_jobs(
    paths: RunPaths, submissions: list[SubmissionRecord], array: str | None = None
) -> list[str]:
    """Ids of this run's jobs that are queued, or were submitted after the queue was looked at."""
    slurm = [submission for submission in submissions if submission.cluster == "slurm"]
    answer = query_queue(paths.root, {submission.user for submission in slurm} or {user()})
    queued = _queued_cells(paths, answer, submissions)
    found = {job.job_id for (name, _), job in queued.items() if array in (None, name)}
    for submission in slurm:
        unseen = (
            not answer.answered or datetime.fromisoformat(submission.at).timestamp() > answer.at - 1
        )
        if unseen and array in (None, submission.array):
            found.add(submission.job_id)
    return sorted(found)

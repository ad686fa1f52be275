"""What the files of a run say of its cells, and what they leave to Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gnnhpc.records.provenance import user
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from jobs.folder.attempt_files import (
    AttemptResult,
    ManifestEntry,
    last_write_time,
    list_attempts,
    read_attempt_job,
    read_attempt_result,
    read_manifest_entries,
)
from jobs.folder.locked_files import open_run
from jobs.folder.run_blocks import Key, RunBlocks, read_blocks
from jobs.folder.submission_records import SubmissionRecord, read_submissions, supervisor_is_alive
from jobs.state.live_cells import epoch_seconds


@dataclass(frozen=True)
class ReadRun:
    """A run's manifest, submissions, attempts and results, each read once."""

    paths: RunPaths
    entries: list[ManifestEntry]
    submissions: list[SubmissionRecord]
    attempts_of: Mapping[str, list[AttemptPaths]]
    """Of each cell that was tried, newest first."""
    results: Mapping[str, AttemptResult | None]
    """Of these the newest valid result, else that of the newest attempt if it has one."""
    blocks: RunBlocks

    def read_again(self, entry: ManifestEntry) -> tuple[list[AttemptPaths], AttemptResult | None]:
        """A cell's attempts, newest first, and the result that decides, as they are now."""
        attempts = self.paths.cell(entry.id).attempts()[::-1]
        return attempts, _deciding_result(attempts)

    @cached_property
    def submitted(self) -> dict[Key, SubmissionRecord]:
        """The newest submission of each cell, by array and index."""
        return {
            key: submission
            for submission in self.submissions
            for index in submission.index_list()
            for key in self.blocks.keys(submission.array, index)
        }

    @cached_property
    def supervised(self) -> dict[Key, SubmissionRecord]:
        """Submissions to a local supervisor that still runs."""
        return {key: s for key, s in self.submitted.items() if supervisor_is_alive(s)}

    @cached_property
    def heard_elsewhere(self) -> dict[str, float]:
        """When the local supervisors of other hosts, by process id, or their ranks last wrote.

        Seconds since the epoch.
        """
        found: dict[str, float] = {}
        for entry in self.entries if self.unfinished else ():
            submission = self.submitted.get((entry.array, entry.index))
            if submission is None or submission.cluster != "local" or submission.is_of_this_host:
                continue
            attempts, result = self.attempts_of.get(entry.id), self.results.get(entry.id)
            if result is not None:
                written = epoch_seconds(result.ended_at)
            else:
                written = last_write_time(attempts[0]) if attempts else 0.0
            before = found.get(submission.job_id, epoch_seconds(submission.at))
            found[submission.job_id] = max(before, written)
        return found

    @cached_property
    def unfinished(self) -> list[ManifestEntry]:
        """The cells without a valid result."""
        results = self.results
        return [e for e in self.entries if not ((found := results.get(e.id)) and found.valid)]

    @property
    def in_slurm(self) -> bool:
        """Whether a cell was submitted to Slurm."""
        return any(submission.cluster == "slurm" for submission in self.submissions)

    @property
    def may_be_in_slurm(self) -> bool:
        """False where no job of Slurm's can be this run's.

        Unfinished cells without a supervisor may have been submitted by hand.
        """
        return self.in_slurm or bool(self.unfinished and not self.supervised)

    @property
    def may_change(self) -> bool:
        """Whether Slurm may have a job of a cell that has no valid result, or one from before its
        submission."""
        again = map(self._is_measured_again, self.entries)
        return self.may_be_in_slurm and (bool(self.unfinished) or any(again))

    def _is_measured_again(self, entry: ManifestEntry) -> bool:
        submission = self.submitted.get((entry.array, entry.index))
        result = self.results.get(entry.id)
        if submission is None or submission.cluster != "slurm" or result is None:
            return False
        return epoch_seconds(submission.at) > epoch_seconds(result.ended_at)

    @property
    def users(self) -> set[str]:
        """Whose jobs in Slurm may be this run's."""
        return slurm_users(self.submissions)

    @property
    def jobs(self) -> dict[str, str | None]:
        """The jobs of unfinished cells, with their arrays; None where these are not known."""
        newest = (self.attempts_of[e.id][0] for e in self.unfinished if self.attempts_of.get(e.id))
        arrays: dict[str, str | None] = dict.fromkeys(_jobs_of_attempts(newest))
        return arrays | {
            submission.job_id: submission.array
            for entry in self.unfinished
            if (submission := self.submitted.get((entry.array, entry.index)))
            and submission.cluster == "slurm"
        }


def slurm_users(submissions: Iterable[SubmissionRecord]) -> set[str]:
    """Those who have submitted, and whoever asks: of jobs by hand no line is kept."""
    return {user(), *(one.user for one in submissions if one.cluster == "slurm")}


def read_run(run: str | Path) -> ReadRun:
    """Raises InputError if the folder is no run, or its manifest, submissions or tables damaged."""
    paths = open_run(run)
    entries = read_manifest_entries(paths.manifest)
    return _read_cells(paths, entries, list_attempts(paths))


def read_cell(paths: RunPaths, entry: ManifestEntry) -> ReadRun:
    """As `read_run`, of one cell of its manifest."""
    return _read_cells(paths, [entry], {entry.id: paths.cell(entry.id).attempts()[::-1]})


def _read_cells(
    paths: RunPaths, entries: list[ManifestEntry], attempts_of: dict[str, list[AttemptPaths]]
) -> ReadRun:
    submissions = read_submissions(paths)
    results = {
        entry.id: _deciding_result(attempts_of[entry.id])
        for entry in entries
        if entry.id in attempts_of
    }
    return ReadRun(paths, entries, submissions, attempts_of, results, read_blocks(paths))


def _deciding_result(attempts: list[AttemptPaths]) -> AttemptResult | None:
    """The newest valid result, or a damaged one that is newer; else that of the newest attempt if
    it has one."""
    first: AttemptResult | None = None
    for number, attempt in enumerate(attempts):
        result = read_attempt_result(attempt)
        if result is not None and result.damaged:
            return result
        if result is not None and result.valid:
            return replace(result, twice=_measured_before(result, attempts[number + 1 :]))
        if number == 0:
            first = result
    return first


def _measured_before(result: AttemptResult, earlier: list[AttemptPaths]) -> int | None:
    """The earlier attempt by which the same job of Slurm's had measured the cell already."""
    for attempt in earlier if result.job else ():
        before = read_attempt_result(attempt)
        if before is not None and before.valid and before.job == result.job:
            return before.attempt
    return None


def _jobs_of_attempts(newest: Iterable[AttemptPaths]) -> set[str]:
    """Ids of the jobs that made these attempts; jobs submitted by hand have no other record."""
    return {job.partition("_")[0] for attempt in newest if (job := read_attempt_job(attempt))}

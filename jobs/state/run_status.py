"""What became of every cell of a run: folders, the queue and the supervisor put together."""

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
from jobs.cluster import slurm_queue as queue
from jobs.cluster.slurm_queue import Answer
from jobs.folder import attempt_files as attempts
from jobs.folder import submission_records as submissions
from jobs.folder.attempt_files import Outcome, Place
from jobs.folder.locked_files import open_run
from jobs.folder.submission_records import Entry
from jobs.state.cell_state import LIVE, STATES, CellStatus, Known, judge


@dataclass(frozen=True)
class RunStatus:
    """All cells of a run, in the manifest's order."""

    run: Path
    cells: tuple[CellStatus, ...]
    slurm: str
    """Where the word on queued jobs is from, or why there is none."""

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
    places = attempts.read_places(paths.manifest)
    entries = submissions.read(paths)
    tried = attempts.list_attempts(paths)
    outcomes = {place.id: _best(tried[place.id]) for place in places if place.id in tried}
    known = _known(paths, places, entries, outcomes, tried)
    cells = tuple(
        judge(place, tried.get(place.id, []), outcomes.get(place.id), known) for place in places
    )
    answer = known.answer
    slurm = answer.error or f"Slurm asked {max(0.0, time.time() - answer.at):.0f} s ago"
    return RunStatus(paths.root, cells, slurm if _uses_slurm(entries, answer) else "local run")


def _uses_slurm(entries: list[Entry], answer: Answer) -> bool:
    return bool(answer.jobs) or any(entry.cluster == "slurm" for entry in entries)


def _best(tries: list[AttemptPaths]) -> Outcome | None:
    """The newest valid result, else that of the newest attempt if it has one."""
    first: Outcome | None = None
    for number, attempt in enumerate(tries):
        outcome = attempts.read_outcome(attempt)
        if outcome is not None and outcome.valid:
            return outcome
        if number == 0:
            first = outcome
    return first


def _known(
    paths: RunPaths,
    places: list[Place],
    entries: list[Entry],
    outcomes: Mapping[str, Outcome | None],
    tried: Mapping[str, list[AttemptPaths]],
) -> Known:
    submitted = {(e.array, i): e for e in entries for i in e.index_list()}
    supervised = {key: e for key, e in submitted.items() if submissions.supervised(e)}
    unfinished = [p for p in places if not ((o := outcomes.get(p.id)) and o.valid)]
    slurm = [e for e in entries if e.cluster == "slurm"]
    by_hand = any(outcomes.get(p.id) is None for p in unfinished) and not supervised
    if not slurm and not by_hand:
        return Known(Answer(time.time(), error="no job in Slurm"), {}, supervised, submitted)
    users = {e.user for e in slurm} or {user()}
    ended = {
        entry.job_id
        for place in unfinished
        if (entry := submitted.get((place.array, place.index))) and entry.cluster == "slurm"
    }
    ended |= _jobs_of_attempts(tried[place.id][0] for place in unfinished if tried.get(place.id))
    answer = queue.ask(paths.root, users, ended)
    queued = _of_run(paths, answer, entries)
    return Known(answer, queued, supervised, submitted)


def _jobs_of_attempts(newest: Iterable[AttemptPaths]) -> set[str]:
    """Jobs that made these attempts; those submitted by hand are noted nowhere else."""
    headers = [attempts.read_header(attempt) for attempt in newest]
    return {header.job.partition("_")[0] for header in headers if header and header.job}


def _of_run(
    paths: RunPaths, answer: Answer, entries: list[Entry]
) -> dict[tuple[str, int], queue.Job]:
    """Which cells of this run are queued: by job id, or by script or comment if by hand."""
    ids = {entry.job_id: entry.array for entry in entries if entry.cluster == "slurm"}
    roots = {str(paths.root), os.path.realpath(paths.root)}
    queued: dict[tuple[str, int], queue.Job] = {}
    for job in answer.jobs:
        array = ids.get(job.job_id)
        home = os.path.realpath(Path(job.script).parent.parent)
        if array is None and (home in roots or job.comment.strip() in roots):
            array = job.name.partition("@")[0]
        if array is not None:
            queued |= {(array, index): job for index in job.index_list()}
    return queued


def live_jobs(paths: RunPaths, entries: list[Entry], array: str | None = None) -> list[str]:
    """Slurm's ids of this run's jobs that have not ended, as far as Slurm says."""
    slurm = [entry for entry in entries if entry.cluster == "slurm"]
    answer = queue.ask(paths.root, {entry.user for entry in slurm} or {user()})
    queued = _of_run(paths, answer, entries)
    found = {job.job_id for (name, _), job in queued.items() if array in (None, name)}
    for entry in slurm:
        unseen = not answer.asked or datetime.fromisoformat(entry.at).timestamp() > answer.at - 1
        if unseen and array in (None, entry.array):
            found.add(entry.job_id)
    return sorted(found)

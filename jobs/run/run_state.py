"""The state of a run as its folder says it: cells, attempts and submissions, read once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts
from jobs.run.attempt_progress import job_of
from jobs.run.blocks import Blocks, Key, read_blocks
from jobs.run.open_run import open_run
from jobs.run.submission_records import SubmissionRecord, read_submissions


@dataclass(frozen=True)
class RunState:
    """A run's cells, attempts and submissions."""

    paths: RunPaths
    cells: list[Cell]
    attempts: dict[str, list[Attempt]]
    """By cell id, oldest first; no entry for a cell that was never tried."""
    submissions: list[SubmissionRecord]
    """Oldest first."""
    blocks: Blocks

    @cached_property
    def submitted(self) -> dict[Key, SubmissionRecord]:
        """The newest submission of each cell, by array and index."""
        return {
            key: submission
            for submission in self.submissions
            for number in submission.numbers()
            for key in self.blocks.keys(submission.array, number)
        }

    @property
    def users(self) -> set[str]:
        """Whose jobs in Slurm may be this run's; no line is kept of scripts submitted by hand."""
        return {user(), *(one.user for one in self.submissions if one.cluster == "slurm")}

    @property
    def slurm_arrays(self) -> dict[str, str]:
        """The arrays of the jobs that were submitted to Slurm, by job id."""
        return {one.job_id: one.array for one in self.submissions if one.cluster == "slurm"}

    @cached_property
    def unfinished(self) -> list[Cell]:
        """The cells without a valid attempt."""
        chosen = ((cell, choose_attempt(self.attempts.get(cell.id, []))) for cell in self.cells)
        return [cell for cell, attempt in chosen if attempt is None or not attempt.valid]

    @cached_property
    def unfinished_jobs(self) -> dict[str, str | None]:
        """The jobs of unfinished cells with their arrays, None for a job submitted by hand."""
        jobs: dict[str, str | None] = {}
        for cell in self.unfinished:
            attempts = self.attempts.get(cell.id)
            if attempts and (job := job_of(attempts[-1])):
                jobs.setdefault(job.partition("_")[0], None)
            submission = self.submitted.get((cell.array, cell.index))
            if submission is not None and submission.cluster == "slurm":
                jobs[submission.job_id] = submission.array
        return jobs

    @property
    def may_be_in_slurm(self) -> bool:
        """Whether Slurm may have a job of the run: not for one that only ran locally."""
        local = bool(self.submissions) and all(one.cluster == "local" for one in self.submissions)
        return not local or bool(self.unfinished_jobs)

    def read_again(self, cells: Iterable[Cell]) -> RunState:
        """The same state with the attempts at these cells as they are now."""
        fresh = {cell.id: read_attempts(self.paths.cell(cell.id)) for cell in cells}
        kept = {name: some for name, some in (self.attempts | fresh).items() if some}
        return replace(self, attempts=kept)


def read_run(run: str | Path) -> RunState:
    """Read a run folder.

    Raises InputError if it is no run folder, or its manifest, submissions or blocks are damaged.
    """
    paths = open_run(run)
    # Attempts first: a cell that is added to the run is in the manifest before it is tried.
    attempts = _read_all_attempts(paths)
    cells = read_manifest(paths.manifest)
    if lost := attempts.keys() - {cell.id for cell in cells}:
        found = f"no line of {min(lost)}, which cells/ has an attempt of"
        raise InputError(paths.manifest, "cells", found, "a line of every cell of the run")
    return RunState(paths, cells, attempts, read_submissions(paths), read_blocks(paths))


def _read_all_attempts(paths: RunPaths) -> dict[str, list[Attempt]]:
    """Of each cell that was tried, by its id."""
    try:
        folders = list(paths.cells.iterdir())
    except FileNotFoundError:
        return {}
    except OSError as error:
        found = f"unreadable ({error.strerror})"
        raise InputError(paths.cells, None, found, "a folder of each cell") from None
    read = ((folder.name, read_attempts(paths.cell(folder.name))) for folder in folders)
    return {name: attempts for name, attempts in read if attempts}


def find_cell_named(cells: list[Cell], name: str) -> Cell:
    """The cell with this id, start of an id, or array:index; raises InputError unless it is one."""
    array, colon, index = name.rpartition(":")
    if colon:
        found = [cell for cell in cells if (cell.array, str(cell.index)) == (array, index)]
    else:
        found = [cell for cell in cells if cell.id == name]
        found = found or [cell for cell in cells if cell.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"{name!r}, which {len(found)} cells begin with" if found else repr(name)
    example = f"{cells[0].array}:{cells[0].index} or {cells[0].id}"
    raise InputError("CELL", None, what, f"a cell's id or array:index, such as {example}")

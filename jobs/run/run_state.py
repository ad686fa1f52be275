"""The state of a run as its folder has it: cells, attempts, submissions and blocks, read once.

`status`, `rerun`, `cancel` and `clean` all begin with `read_run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, read_attempts
from jobs.run.attempt_files import job_of
from jobs.run.submission_records import Cluster, SubmissionRecord, read_submissions
from jobs.slurm.job_array import Task, tasks_of_cells
from jobs.slurm.paired_blocks import read_blocks

Key = tuple[str, int]
"""Array and index of a cell, or array and number of one of its tasks."""


@dataclass(frozen=True)
class RunState:
    """A run's cells, attempts and submissions."""

    paths: RunPaths
    cells: list[Cell]
    attempts: dict[Key, list[Attempt]]
    """Array and index of each cell -> its attempts, oldest first."""
    submissions: list[SubmissionRecord]
    """Oldest first."""
    blocks: dict[str, list[Task]]
    """The paired blocks of each array that has some."""

    @cached_property
    def cells_of(self) -> dict[Key, list[Key]]:
        """The cells that each task of an array runs, in their order."""
        tasks = tasks_of_cells(self.cells) | self.blocks
        return {
            (array, task.number): [cell.key for cell in task.cells]
            for array, some in tasks.items()
            for task in some
        }

    @cached_property
    def number_in(self) -> dict[tuple[str, Key], int]:
        """The number of the task in which an array runs a cell."""
        return {
            (array, key): number for (array, number), keys in self.cells_of.items() for key in keys
        }

    @cached_property
    def submitted(self) -> dict[Key, SubmissionRecord]:
        """The newest submission of each cell, by array and index."""
        return {
            key: submission
            for submission in self.submissions
            for number in submission.numbers()
            for key in self.cells_of.get((submission.array, number), ())
        }

    @property
    def users(self) -> set[str]:
        """Users whose jobs may be this run's; scripts submitted by hand leave no line."""
        return {user(), *(one.user for one in self.submissions if one.cluster == "slurm")}

    @property
    def slurm_arrays(self) -> dict[str, str]:
        """The arrays of the jobs that were submitted to Slurm, by job id."""
        return {one.job_id: one.array for one in self.submissions if one.cluster == "slurm"}

    @cached_property
    def unfinished_jobs(self) -> dict[str, str | None]:
        """The jobs of cells without a valid attempt with their arrays, None for a job by hand."""
        jobs: dict[str, str | None] = {}
        for key, attempts in self.attempts.items():
            if any(attempt.valid for attempt in attempts):
                continue
            if attempts and (job := job_of(attempts[-1])):
                jobs.setdefault(job.partition("_")[0], None)
            submission = self.submitted.get(key)
            if submission is not None and submission.cluster == "slurm":
                jobs[submission.job_id] = submission.array
        return jobs

    @property
    def may_be_in_slurm(self) -> bool:
        """Whether Slurm may have a job of the run: not for one that only ran locally."""
        local = bool(self.submissions) and all(one.cluster == "local" for one in self.submissions)
        return not local or bool(self.unfinished_jobs)

    @property
    def cluster(self) -> Cluster:
        """Where the run was first submitted."""
        return self.submissions[0].cluster if self.submissions else "slurm"

    @cached_property
    def local_processes(self) -> set[str]:
        """Ids of the processes of this machine that run cells of the run."""
        return {one.job_id for one in self.submissions if one.process_is_alive}


def read_run(run: str | Path) -> RunState:
    """Read a run folder.

    Raises InputError if it is no run folder, or its manifest, submissions or blocks are damaged.
    """
    paths = open_run(run)
    cells = read_manifest(paths.manifest)
    attempts = {cell.key: read_attempts(paths.cell(cell.id)) for cell in cells}
    return RunState(paths, cells, attempts, read_submissions(paths), read_blocks(paths, cells))


def open_run(run: str | Path) -> RunPaths:
    """The paths of the run folder that a user named; raises InputError if it is no run folder."""
    paths = RunPaths(Path(run).absolute())
    if not paths.manifest.is_file():
        found = "no manifest.jsonl in it" if paths.root.is_dir() else "no such folder"
        raise InputError(str(run), None, found, "a run folder, such as runs/quickstart")
    return paths

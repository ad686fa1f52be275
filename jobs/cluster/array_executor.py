"""submitit's Slurm executor, with a command of ours in place of a pickled call."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import submitit

from jobs.cluster.shell_defaults import without_overrides

_TELLS_SBATCH_WHERE = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


class ArrayExecutor(submitit.SlurmExecutor):
    """Submits job arrays that need the run folder alone.

    submitit checks the parameters, writes the batch script, calls sbatch and reads the job's id.
    Its own jobs load a pickle that it names after that id once sbatch has returned; ours run a
    command that is complete before, so whoever submits may die at any moment.
    """

    def __init__(self, folder: Path, python: str, given: Collection[str] = ()) -> None:
        super().__init__(folder=folder, python=python)
        self.given = frozenset(given)
        """The options of sbatch that the script says, which no variable may outrank."""
        self.scripts: list[str] = []
        """The batch scripts that sbatch was given, one a try, as squeue shows them."""

    def submit_command(self, command: str) -> str:
        """Call sbatch once; returns the job's id.

        Raises submitit's FailedJobError with sbatch's words, FailedSubmissionError where they name
        no job, OSError.
        """
        # submitit prints sbatch's message too, which the error contains.
        said = contextlib.redirect_stderr(io.StringIO())
        with said, outside_of_jobs(), without_overrides(self.given):
            return str(self._submit_command(command).job_id)

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """The id in sbatch's own line, whatever a site's wrapper prints before it."""
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        own = re.search(r"^Submitted batch job \d+", text, re.MULTILINE)
        known = submitit.SlurmExecutor._get_job_id_from_submission_command
        return str(known(own[0] if own else text))

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        self.scripts.append(str(submission_file_path))
        return [str(word) for word in super()._make_submission_command(submission_file_path)]


class ScriptExecutor(ArrayExecutor):
    """Submits whole batch scripts of ours: submitit's have one srun, and a block one for each cell.

    submitit keeps the script in its folder, calls sbatch and reads the job's id.
    """

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return command


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Without the variables of the job that this process runs in, which sbatch would hand on.

    Those that tell sbatch which Slurm to ask, and users' own defaults for sbatch, stay.
    """
    if not {"SLURM_JOB_ID", "RANK"} & os.environ.keys():
        yield
        return
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _TELLS_SBATCH_WHERE or name.startswith("SBATCH_")
    }
    with submitit.helpers.clean_env():
        os.environ.update(kept)
        yield

"""Calling sbatch so that an array is in Slurm once, whatever becomes of sbatch's answer."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import submitit

from gnnhpc.core.cli_support import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.provenance import user
from jobs.cluster.array_executor import ArrayExecutor
from jobs.cluster.scancel import scancel
from jobs.cluster.slurm_queue import QueuedJob, SlurmSilentError, ask_squeue

WAITS_S = (2.0, 6.0, 18.0)
"""After each try that failed: before the queue is looked at and sbatch is called again."""

End = Literal["refused", "not reached", "answer lost"]
_NOT_REACHED = re.compile(
    r"connect failure|connection failure|connection refused|temporarily|standby|"
    r"configuration (source|file)",
    re.IGNORECASE,
)
"""sbatch reached no controller, or one that takes no jobs just now: nothing is submitted."""
_ANSWER_LOST = re.compile(
    r"timed out|zero bytes|(send|receive|shutdown) failure|unexpected message|connection reset|"
    r"broken pipe|not connected",
    re.IGNORECASE,
)
"""sbatch's request may have arrived, and the answer to it did not."""
_SLURM_REFUSED = "Batch job submission failed"
"""So sbatch begins what Slurm answers. Other words may be those of a site's own wrapper, which
fails after sbatch has submitted."""


class MaybeSubmittedError(GnnhpcError):
    """A job of the run is in Slurm, or may be: its run folder must stay."""


@dataclass(frozen=True)
class Sought:
    """How the job of a submission is told from others in the queue."""

    run: Path
    name: str
    recorded: Collection[str]
    """Ids of the jobs that the run knows already."""

    def find(self, scripts: list[str]) -> str | None:
        """The id of the job that came of one of these scripts, queued or ended; None without.

        Raises SlurmSilentError if Slurm cannot be asked.
        """
        return next((job.job_id for job in ask_squeue([user()]) if self._fits(job, scripts)), None)

    def _fits(self, job: QueuedJob, scripts: list[str]) -> bool:
        if job.script in scripts:
            return True
        # A site's own sbatch may submit a copy; other scripts of the run folder are of other times
        # or of a user's hand.
        return (
            (job.name, job.comment.strip()) == (self.name, str(self.run))
            and job.job_id not in self.recorded
            and not Path(job.script).is_relative_to(self.run)
        )


def submit_once(executor: ArrayExecutor, command: str, array: str, sought: Sought) -> str:
    """Submit the executor's array with this command; returns the job's id.

    An error that may have submitted a job is followed by a look at the queue, one that has not by
    another try. Raises InputError where Slurm refuses the array, GnnhpcError where it cannot be
    reached, MaybeSubmittedError where nobody can tell.
    """
    unsure = False
    for number, wait in enumerate(WAITS_S, 1):
        tries = len(executor.scripts)
        try:
            job = executor.submit_command(command)
        except (RuntimeError, OSError) as error:
            words = _one_line(error)
            called = len(executor.scripts) > tries
            end = _end(error, called=called)
        else:
            return _without_double(job, executor, sought) if unsure else job
        unsure = unsure or end == "answer lost"
        if end == "refused" and called and _SLURM_REFUSED not in words and not unsure:
            found = _look(executor, array, sought, words)
            if found is not None:
                return found
        if end == "refused" or (number == len(WAITS_S) and not unsure):
            break
        time.sleep(wait)
        if unsure and (found := _look(executor, array, sought, words)) is not None:
            return found
    if unsure:
        raise MaybeSubmittedError(f"sbatch {array}: {words}; {_what_to_do(sought.run)}")
    if not called:
        raise GnnhpcError(f"{array} is not submitted: {words}")
    raise _error(words, array, end)


def _end(error: Exception, *, called: bool) -> End:
    """What a failed try did; `called`: sbatch was called in it."""
    words = str(error)
    if _ANSWER_LOST.search(words):
        return "answer lost"
    if _NOT_REACHED.search(words):
        return "not reached"
    # Killed without a word, an answer that names no job, or a file not written after it.
    wordless = not words.strip() or not isinstance(error, submitit.core.utils.FailedJobError)
    return "answer lost" if called and wordless else "refused"


def _look(executor: ArrayExecutor, array: str, sought: Sought, words: str) -> str | None:
    try:
        return sought.find(executor.scripts)
    except SlurmSilentError as silent:
        raise MaybeSubmittedError(
            f"sbatch {array}: {words}; whether it is submitted Slurm does not say ({silent}); "
            f"{_what_to_do(sought.run)}"
        ) from None


def _without_double(job: str, executor: ArrayExecutor, sought: Sought) -> str:
    """The array's one job: an earlier try's, if that came late, or else this one."""
    with contextlib.suppress(SlurmSilentError, GnnhpcError):
        late = sought.find(executor.scripts[:-1])
        if late is not None and late != job:
            scancel([job])
            return late
    return job


def _what_to_do(run: Path) -> str:
    return (
        f"{run} stays as it is; once Slurm answers, `{as_typed('jobs', 'status')} {run}` shows the "
        f"cells, and `{as_typed('jobs', 'rerun')} {run} --missing` submits those that are not there"
    )


def _error(words: str, array: str, end: End) -> GnnhpcError:
    """A GnnhpcError if Slurm is down, else an InputError; one line."""
    if end == "not reached":
        return GnnhpcError(f"sbatch {array}: {words}")
    allowed = f"what this cluster offers: {as_typed('jobs', 'site check')}"
    return InputError(f"sbatch {array}", None, words, allowed)


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).replace("sbatch: error:", "").split())
    return words or "sbatch failed without a message"

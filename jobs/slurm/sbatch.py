"""Calls sbatch so that an array is in Slurm once, and scancel so that it is gone for good."""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.slurm_commands import ask, run_slurm
from jobs.slurm.site_settings import Value
from jobs.slurm.squeue_and_sacct import SlurmSilentError, ask_squeue, error_line
from jobs.slurm.user_sbatch_options import sbatch_environment

LOOK_AFTER_S = 5.0
"""Pause before the queue is asked whether a job whose answer was lost is there."""
_TIMEOUT_S = 120.0
_LIMIT = "job submit limit"
"""How Slurm names MaxSubmitJobs and limits like it, of a user, an account or a QoS."""
_REFUSED = "Batch job submission failed"
"""How sbatch begins what Slurm answers; other words may come from a site's own wrapper, which may
fail after it has submitted."""
_ANSWER_LOST = re.compile(
    r"timed out|zero bytes|(send|receive|shutdown) failure|unexpected message|connection reset|"
    r"broken pipe|not connected|(connect|connection) (failure|refused)|temporarily|standby",
    re.IGNORECASE,
)
"""sbatch's request may have arrived although no answer did."""


class MaybeSubmittedError(GnnhpcError):
    """A job of the run is in Slurm, or may be: its run folder must stay."""


class SubmitLimitError(InputError):
    """Slurm takes no more jobs of this user, account or QoS, or none as large as these."""


def submit_script(script: Path, run: Path, own: Collection[str], options: Sequence[str]) -> str:
    """Submit a script of a run with these options; returns the job's id.

    No variable overrules the options that are the script's `own`. The job's comment holds a random
    token, so where the answer is lost one query of the queue shows whether the job is there. Raises
    InputError where Slurm refuses the script, and MaybeSubmittedError where it remains unknown
    whether the job is in Slurm.
    """
    token = secrets.token_hex(6)
    command = ["sbatch", f"--comment={run} [{token}]", *options, str(script)]
    is_done, words = _call(command, sbatch_environment(own))
    job = re.search(r"^Submitted batch job (\d+)", words, re.MULTILINE)
    if is_done and job:
        return job[1]
    line, label = _one_line(words), script.stem
    if _LIMIT in words:
        allowed = "fewer jobs at once: wait until others have ended, or another account or qos"
        raise SubmitLimitError(f"sbatch {label}", None, line, allowed)
    if _REFUSED in words and not _ANSWER_LOST.search(words):
        allowed = f"what this cluster offers: {as_typed('jobs', 'site check')}"
        raise InputError(f"sbatch {label}", None, line, allowed)
    return _look_for(token, label, line, run)


def refusal(options: Mapping[str, Value]) -> str | None:
    """Why sbatch would refuse a job with these options; None where it would take it."""
    words = [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]
    command = ["sbatch", "--test-only", *words, "--wrap=true"]
    is_done, answer = _call(command, sbatch_environment(options.keys()))
    return None if is_done else _one_line(answer)


def cancel_jobs(jobs: Sequence[str]) -> None:
    """Cancel these jobs, which their ranks can then not queue again when they have saved.

    Raises GnnhpcError if scancel refuses.
    """
    for job in jobs:
        ask("scontrol", "update", f"JobId={job}", "Requeue=0")
    try:
        run_slurm("scancel", *jobs, timeout_s=60.0)
    except (OSError, subprocess.SubprocessError) as error:
        raise GnnhpcError(f"scancel: {error_line(error)}") from None


def _one_line(words: str) -> str:
    """What sbatch prints, without the names of those that print it."""
    for name in ("sbatch: error:", "allocation failure:"):
        words = words.replace(name, "")
    lines = (" ".join(line.split()) for line in words.splitlines())
    return "; ".join(line for line in lines if line) or "sbatch failed without words"


def _call(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    """Whether sbatch ends well and in time, and what it prints."""
    try:
        return True, run_slurm(*command, timeout_s=_TIMEOUT_S, environment=environment)
    except subprocess.TimeoutExpired:
        return False, f"timed out: no answer within {_TIMEOUT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        return False, f"{error.stdout}\n{error.stderr}"


def _look_for(token: str, label: str, words: str, run: Path) -> str:
    """The id of the job whose comment holds the token. Raises MaybeSubmittedError without one."""
    time.sleep(LOOK_AFTER_S)
    try:
        jobs = [job.job_id for job in ask_squeue([user()]) if job.comment.endswith(f"[{token}]")]
        if jobs:
            return jobs[0]
        answer = "Slurm lists no such job"
    except SlurmSilentError as silent:
        answer = f"Slurm does not say whether it is submitted ({silent})"
    raise MaybeSubmittedError(
        f"sbatch {label}: {words}; {answer}; {run} stays as it is: once Slurm answers, "
        f"`{as_typed('jobs', 'status')} {run}` shows the cells, and "
        f"`{as_typed('jobs', 'rerun')} {run} --missing` submits those that are not there"
    )

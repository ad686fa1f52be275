"""Hands the arrays of a submission to Slurm, or its cells to a supervisor on this machine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.python_path import ROOT
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.code_snapshot import REPORTING
from jobs.run.submission_records import record_submission
from jobs.slurm.batch_script import REPORT, report_script
from jobs.slurm.job_array import JobArray
from jobs.slurm.launch import slurm_limit
from jobs.slurm.sbatch import MaybeSubmittedError, Request, SubmitLimitError, submit_script
from jobs.submission.local_runs import LocalRun, start_supervisor
from jobs.submission.run_folder import script_of
from jobs.submission.submission import Submission

Job = tuple[JobArray, str]
"""An array, or a portion of it, with the id of its job; locally the supervisor's process id."""


def submit_arrays(submission: Submission, paths: RunPaths, *, wait: bool) -> list[Job]:
    """Submit every array and record each as soon as it is in; the caller holds the run's lock.

    Returns the arrays with their jobs' ids. With `wait` the cells of a local run are for this
    process to run. Raises InputError where Slurm refuses the first array, GnnhpcError for a later
    one, and MaybeSubmittedError where that remains unknown, or where a job cannot be recorded.
    """
    if submission.cluster == "slurm":
        return _submit_to_slurm(submission, paths)
    supervisor = None if wait else start_supervisor(paths)
    pid = str(supervisor.pid if supervisor else os.getpid())
    for array in submission.arrays:
        _record(submission, paths, array, pid)
    if supervisor is not None and supervisor.stdin is not None:
        pickle.dump(LocalRun.of(submission, paths), supervisor.stdin)
        supervisor.stdin.close()
    return [(array, pid) for array in submission.arrays]


def _submit_to_slurm(submission: Submission, paths: RunPaths) -> list[Job]:
    """Under a limit of jobs an array goes in portions, as many tasks as Slurm takes."""
    limit, tasks = slurm_limit("MaxJobCount"), submission.tasks
    if limit is not None and tasks > limit:
        allowed = f"at most {limit} jobs in this cluster's queue (MaxJobCount)"
        raise InputError("submit", None, f"{tasks} tasks", allowed)
    done: list[Job] = []
    for array in submission.arrays:
        script, left, size = script_of(submission, array, paths), array.tasks, len(array.tasks)
        while left:
            portion = replace(array, tasks=left[:size])
            waits = [done[-1][1]] if submission.one_at_a_time and done else submission.dependencies
            try:
                job = submit_script(_request(submission, portion, script, waits))
            except SubmitLimitError:
                if size > 1:
                    size //= 2
                    continue
                if done:
                    return done
                raise
            except GnnhpcError as error:
                if not done:
                    raise
                raise _after_some(error, submission, done) from None
            _record(submission, paths, portion, job)
            done.append((portion, job))
            left = left[size:]
    return done


def _record(submission: Submission, paths: RunPaths, array: JobArray, job: str) -> None:
    cluster, launch = submission.cluster, submission.launch
    try:
        record_submission(paths, cluster, array.name, array.numbers, job, launch, array.first_task)
    except (GnnhpcError, OSError) as error:
        words = f"{array.label} is job {job}, which could not be recorded: {error}"
        raise MaybeSubmittedError(words) from None


def _request(
    submission: Submission, array: JobArray, script: Path, waits: Sequence[str]
) -> Request:
    options = array.resources.options()
    given = [f"--array={array.array_option(submission.launch.site.max_parallel)}"]
    if waits:
        after = f"afterany:{':'.join(waits)}"
        of_site = options.get("dependency")
        given.append(f"--dependency={f'{of_site},{after}' if of_site else after}")
    return Request(script, submission.run, options, given)


def _after_some(error: GnnhpcError, submission: Submission, done: Sequence[Job]) -> GnnhpcError:
    """The error of a later array: the input is not refused, since arrays before it are in Slurm."""
    names = ", ".join(f"{array.name} as {job}" for array, job in done)
    paired = " --paired" if submission.is_paired else ""
    command = as_typed("jobs", f"rerun {submission.run} --missing{paired}")
    kind = type(error) if not isinstance(error, InputError) else GnnhpcError
    return kind(f"{error}; submitted before that: {names}; the others: {command}")


def submit_report(
    submission: Submission,
    paths: RunPaths,
    arrays: Sequence[Job],
    notify: Callable[[str], None],
) -> str | None:
    """Submit one task that writes the report when these jobs have ended; None if refused."""
    launch = submission.launch
    if not launch.live and not (paths.code / REPORTING).is_dir():
        notify(f"the run keeps no code that reports; its report job runs the code in {ROOT}")
    text, needs = report_script(paths.root, launch)
    script = paths.script(REPORT)
    script.write_text(text, encoding="utf-8")
    given = [f"--dependency=afterany:{':'.join(job for _, job in arrays)}"]
    try:
        return submit_script(Request(script, paths.root, needs.options(), given))
    except GnnhpcError as error:
        notify(f"no job will write the report: {error}")
        return None

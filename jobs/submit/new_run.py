"""Submits a plan as a new run: writes its run folder and submits its arrays."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.settings import expand_user
from jobs.run.submission_records import run_lock
from jobs.slurm.launch import Launch
from jobs.slurm.paired_blocks import pair_cells
from jobs.slurm.sbatch import MaybeSubmittedError
from jobs.submit.run_folder import write_run_folder
from jobs.submit.scheduler import Watch
from jobs.submit.schedulers import (
    SCHEDULERS,
    Submitted,
    jobs_of_after,
    submit_arrays,
    wait_if_asked,
)
from jobs.submit.submission import Options, Submission, make_launch, make_submission
from jobs.sweep.plan import Plan


def submit(
    plan: Plan,
    options: Options | None = None,
    *,
    runs: str | Path = "runs",
    watch: Watch | None = None,
) -> Submitted:
    """Write a plan's run folder and submit its cells.

    Returns at once unless `options.wait` or for a local run. The jobs run the code that the run
    folder keeps. Raises InputError, with nothing written, for wrong input or where Slurm refuses
    the first array, and MaybeSubmittedError, with the run folder left as it is, where a job may be
    in Slurm.
    """
    options = options or Options()
    submission = prepare_submit(plan, options, runs=runs)
    paths = write_run_folder(submission)
    try:
        with run_lock(paths):
            submitted = submit_arrays(submission, paths)
    except MaybeSubmittedError:
        raise
    except GnnhpcError:
        if not paths.submissions.exists():
            # The folder is new, and no job uses it.
            shutil.rmtree(submission.run)
        raise
    return wait_if_asked(submitted, options, watch)


def prepare_submit(plan: Plan, options: Options, *, runs: str | Path = "runs") -> Submission:
    """What `submit` submits; nothing is written. Raises InputError for wrong input."""
    run = expand_user(runs, "--runs").absolute() / plan.name
    cluster = options.cluster or "slurm"
    blocks = pair_cells(plan.cells) if options.paired else {}
    launch, waits = make_launch(Launch(), options), jobs_of_after(options)
    submission = make_submission(run, plan.cells, blocks, launch, cluster, waits, plan)
    SCHEDULERS[cluster].check(submission, options)
    return submission

"""`submit --report`: a report once all cells have ended, by a job of its own or here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.python_path import ROOT, search_path_for_children
from gnnhpc.records.code_snapshot import REPORTING
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.launch import Launch
from jobs.cluster.report_job import submit_report

Listener = Callable[[str], None] | None


def check_reporting(cluster: str, *, wait: bool) -> None:
    """Raises InputError where nobody would be there to write the report."""
    if cluster == "local" and not wait:
        raise InputError("--report", None, "--cluster local without --wait", "--wait with it")


def start_report_job(
    paths: RunPaths, jobs: Sequence[str], launch: Launch, tell: Listener = None
) -> str | None:
    """Submit the job that reports when these jobs have ended; None if Slurm does not take it.

    `tell` hears why not: the cells are submitted by then.
    """
    if not launch.live and not (paths.code / REPORTING).is_dir() and tell is not None:
        tell(f"the run keeps no code that reports; its report job runs that in {ROOT}")
    try:
        return submit_report(paths, jobs, launch, jobs)
    except GnnhpcError as error:
        if tell is not None:
            tell(f"no job will write the report: {error}")
        return None


def write_report(paths: RunPaths, tell: Listener = None) -> None:
    """Write the report here, in a process of its own; `tell` hears that it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "analysis", "report", str(paths.root)],
        env=os.environ | search_path_for_children(),
        check=False,
    )
    if done.returncode and tell is not None:
        tell(f"the report ended with status {done.returncode}")

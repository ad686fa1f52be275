"""Submits sweeps as Slurm job arrays, shows the state of their cells and reruns them.

    import jobs
    plan = jobs.plan("jobs/sweeps/quickstart.yaml", ["train_steps=5"])
    submission = jobs.submit(plan, jobs.Options(cluster="local", wait=True))
    jobs.status(submission.run).counts()

The commands of `python -m jobs` call these functions. Each is imported on first use; none imports
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.run.cell_state import CellState as CellState
    from jobs.run.run_state import RunState as RunState
    from jobs.run.run_state import read_run as read_run
    from jobs.run.status import RunStatus as RunStatus
    from jobs.run.status import status as status
    from jobs.slurm.site import Site as Site
    from jobs.slurm.site_files import load_site as load_site
    from jobs.submission.clusters import cancel as cancel
    from jobs.submission.rerun import rerun as rerun
    from jobs.submission.submission import Options as Options
    from jobs.submission.submission import Submission as Submission
    from jobs.submission.submit import Submitted as Submitted
    from jobs.submission.submit import submit as submit
    from jobs.sweep.plan import Plan as Plan
    from jobs.sweep.plan import plan as plan

_HOME = {
    "CellState": "run.cell_state",
    "Options": "submission.submission",
    "Plan": "sweep.plan",
    "RunState": "run.run_state",
    "RunStatus": "run.status",
    "Site": "slurm.site",
    "Submission": "submission.submission",
    "Submitted": "submission.submit",
    "cancel": "submission.clusters",
    "load_site": "slurm.site_files",
    "plan": "sweep.plan",
    "read_run": "run.run_state",
    "rerun": "submission.rerun",
    "status": "run.status",
    "submit": "submission.submit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"jobs.{_HOME[name]}"), name)

"""Submits sweeps as Slurm job arrays, shows the state of their cells and reruns them.

    import jobs
    plan = jobs.plan("jobs/sweeps/quickstart.yaml", ["train_steps=5"])
    submission = jobs.submit(plan, cluster="local", wait=True)
    jobs.status(submission.run).counts()

The commands of `python -m jobs` call these functions. Each is imported on first use; none imports
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.actions.cancel import cancel
    from jobs.actions.rerun import rerun
    from jobs.actions.submit import Submission, submit
    from jobs.cluster.site import Site
    from jobs.cluster.site_files import load_site
    from jobs.spec.planning import Plan, plan
    from jobs.state.run_status import RunStatus, status
    from jobs.state.states import CellStatus

__all__ = [
    "CellStatus",
    "Plan",
    "RunStatus",
    "Site",
    "Submission",
    "cancel",
    "load_site",
    "plan",
    "rerun",
    "status",
    "submit",
]

_HOME = {
    "CellStatus": "state.states",
    "Plan": "spec.planning",
    "RunStatus": "state.run_status",
    "Site": "cluster.site",
    "Submission": "actions.submit",
    "cancel": "actions.cancel",
    "load_site": "cluster.site_files",
    "plan": "spec.planning",
    "rerun": "actions.rerun",
    "status": "state.run_status",
    "submit": "actions.submit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"jobs.{_HOME[name]}"), name)

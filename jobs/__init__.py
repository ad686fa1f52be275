"""From sweep specs to Slurm job arrays, and back to what became of them.

    import jobs
    plan = jobs.plan("jobs/sweeps/quickstart.yaml", ["train_steps=5"])
    submission = jobs.submit(plan, cluster="local", wait=True)
    jobs.status(submission.run).counts()

The commands of `python -m jobs` are these functions. They load on first use and need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.cancelling import cancel
    from jobs.judge import CellStatus
    from jobs.overview import RunStatus, status
    from jobs.planning import Plan, plan
    from jobs.rerunning import rerun
    from jobs.site import Site, load_site
    from jobs.submitting import Submission, submit

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
    "CellStatus": "judge",
    "Plan": "planning",
    "RunStatus": "overview",
    "Site": "site",
    "Submission": "submitting",
    "cancel": "cancelling",
    "load_site": "site",
    "plan": "planning",
    "rerun": "rerunning",
    "status": "overview",
    "submit": "submitting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"jobs.{_HOME[name]}"), name)

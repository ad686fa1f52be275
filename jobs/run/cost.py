"""What a run has cost: core-hours as Slurm's accounting has them, else as its results say."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.run.attempt_files import job_of
from jobs.run.run_state import RunState
from jobs.slurm.queue import WAITING_STATES, ask_sacct

_PATIENCE_S = 60.0
"""How long sacct may take to answer."""


@dataclass(frozen=True)
class RunCost:
    """The cost of a run."""

    accounted: bool
    """Whether Slurm's accounting says it; else the results do."""
    core_s: float
    """Seconds times CPUs of all tasks; without the accounting from their ranks' start to the
    result."""
    tasks: int
    """Array tasks that began, where each requeue counts again; or attempts with a result."""
    running: int
    """Tasks that have not ended, or attempts without a result."""


def run_cost(state: RunState) -> RunCost:
    """Ask Slurm's accounting for all jobs of the run, those submitted by hand too."""
    attempts = [one for attempts in state.attempts.values() for one in attempts]
    by_hand = (job.partition("_")[0] for one in attempts if (job := job_of(one)))
    jobs: dict[str, str | None] = dict.fromkeys(by_hand) | state.slurm_arrays
    listed = ask_sacct(jobs, patience_s=_PATIENCE_S, all_starts=True)
    tasks = [task for task in listed if task.elapsed_s]
    if tasks:
        running = sum(not (task.has_ended or task.state in WAITING_STATES) for task in tasks)
        return RunCost(True, sum(task.core_s for task in tasks), len(tasks), running)
    costs = [one.result.core_s if one.result else None for one in attempts]
    known = [cost for cost in costs if cost is not None]
    return RunCost(False, sum(known), len(known), len(costs) - len(known))

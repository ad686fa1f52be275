"""What a run has cost: core-hours, as Slurm's accounting has them."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.run.attempt_files import job_of
from jobs.run.run_state import RunState
from jobs.slurm.squeue_and_sacct import WAITING_STATES, ask_sacct

_PATIENCE_S = 60.0
"""How long sacct may take to answer."""


@dataclass(frozen=True)
class RunCost:
    """The cost of a run; all are 0 where sacct says nothing."""

    core_s: float
    """Seconds times CPUs of all tasks."""
    tasks: int
    """Array tasks that began, where each requeue counts again."""
    running: int
    """Tasks that have not ended."""


def run_cost(state: RunState) -> RunCost:
    """Ask Slurm's accounting for all jobs of the run, those submitted by hand too."""
    attempts = (one for attempts in state.attempts.values() for one in attempts)
    by_hand = (job.partition("_")[0] for one in attempts if (job := job_of(one)))
    jobs: dict[str, str | None] = dict.fromkeys(by_hand) | state.slurm_arrays
    listed = ask_sacct(jobs, patience_s=_PATIENCE_S, all_starts=True)
    tasks = [task for task in listed if task.elapsed_s]
    running = sum(not (task.has_ended or task.state in WAITING_STATES) for task in tasks)
    return RunCost(sum(task.elapsed_s * task.cpus for task in tasks), len(tasks), running)

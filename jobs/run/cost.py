"""What a run has cost: core-hours as Slurm's accounting has them, else as its results say."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.accounted_cost import (
    AccountedCost,
    attempt_core_s,
    read_accounted,
    write_accounted,
)
from gnnhpc.records.failures import utc_now
from gnnhpc.records.submissions import read_provenance
from jobs.run.attempt_files import read_process
from jobs.run.run_state import RunState
from jobs.slurm.accounting import AccountedTask, ask_sacct

_PATIENCE_S = 60.0
"""How long sacct may take to answer."""


@dataclass(frozen=True)
class RunCost:
    """The cost of a run."""

    accounted: AccountedCost | None
    """What Slurm's accounting says; None where it cannot be asked, or has no job of the run."""
    recorded_core_s: float
    """Core-seconds of all attempts with a result, from the start of their ranks to the result."""
    attempts: int
    """The number of those attempts."""
    unknown: int
    """Attempts without a result."""


def run_cost(state: RunState) -> RunCost:
    """Ask Slurm's accounting for all jobs of the run.

    The answer is kept in the run folder, where this user may write there, and is used where the
    accounting gives none.
    """
    listed = ask_sacct(_jobs(state), patience_s=_PATIENCE_S, all_starts=True)
    tasks = [task for task in listed if task.elapsed_s]
    accounted = _summed(tasks, whole_nodes=_has_whole_nodes(state)) if tasks else None
    if accounted is not None:
        with contextlib.suppress(OSError):
            write_accounted(state.paths, accounted)
    results = [one.result for attempts in state.attempts.values() for one in attempts]
    costs = [attempt_core_s(result) if result else None for result in results]
    known = [cost for cost in costs if cost is not None]
    accounted = accounted or read_accounted(state.paths)
    return RunCost(accounted, sum(known), len(known), len(costs) - len(known))


def _jobs(state: RunState) -> dict[str, str | None]:
    """Job ids with their arrays, None for jobs submitted by hand."""
    attempts = (one for attempts in state.attempts.values() for one in attempts)
    processes = (read_process(one.paths) for one in attempts)
    tasks = (process.job for process in processes if process is not None and process.job)
    by_hand: dict[str, str | None] = dict.fromkeys(task.partition("_")[0] for task in tasks)
    return by_hand | state.slurm_arrays


def _summed(tasks: list[AccountedTask], *, whole_nodes: bool) -> AccountedCost:
    gathered = [task for task in tasks if task.cpu_s is not None]
    ended = [task for task in tasks if not task.running]
    energies = [task.energy_j for task in ended if task.energy_j is not None]
    # The energy of some tasks says nothing about all.
    measured = whole_nodes and bool(ended) and len(energies) == len(ended)
    return AccountedCost(
        at=utc_now(),
        tasks=len(tasks),
        running=len(tasks) - len(ended),
        core_s=sum(task.core_s for task in tasks),
        ended_core_s=sum(task.core_s for task in gathered),
        cpu_s=sum(task.cpu_s or 0.0 for task in gathered) if gathered else None,
        energy_j=sum(energies) if measured else None,
    )


def _has_whole_nodes(state: RunState) -> bool:
    """Whether all submissions of the run asked for nodes without other jobs."""
    sites: list[object] = [one.site for one in state.submissions if one.cluster == "slurm"]
    sites.append((read_provenance(RunPaths(state.paths.root)) or {}).get("site"))
    return all(isinstance(site, dict) and site.get("exclusive") is True for site in sites)

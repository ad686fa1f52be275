"""What a run cost, in words: as Slurm's accounting said, and as its results say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.cost import AccountedCost, read_accounted

if TYPE_CHECKING:
    from analysis.load.run_data import RunData as Run


def cost_text(run: Run) -> str:
    """Core-hours, CPU efficiency and energy, each where it is known; empty for a run never tried.

    What Slurm's accounting says is in the run folder once `status --cost` or a report job has asked
    it; several runs have their results alone.
    """
    parts = [] if run.runs else _accounted(RunPaths(run.root))
    told = run.attempts["core_s"].dropna()
    if len(told):
        parts.append(
            f"{told.sum() / 3600:.3g} core-hours of {len(told)} attempts, from their ranks' start "
            "to their results"
        )
    if untold := len(run.attempts) - len(told):
        parts.append(f"of {untold} attempts without a result it is not known")
    return "; ".join(parts)


def _accounted(paths: RunPaths) -> list[str]:
    try:
        cost = read_accounted(paths)
    except InputError as error:
        return [str(error)]
    return [] if cost is None else [_accounted_text(cost)]


def _accounted_text(cost: AccountedCost) -> str:
    text = f"{cost.core_s / 3600:.3g} core-hours of {cost.tasks} tasks"
    if cost.running:
        text += f", {cost.running} of them still running"
    text += f", as Slurm's accounting had them at {cost.at}"
    if cost.efficiency is None:
        text += "; CPU efficiency unknown"
    else:
        text += f"; CPU efficiency {cost.efficiency:.0%}"
    if cost.energy_j is not None:
        text += f"; {cost.energy_j / 3.6e6:.3g} kWh of the nodes while the ranks ran"
    return text

"""What a submission may cost, and what a run has cost, in lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gnnhpc.records.cost import AccountedCost
from jobs.cluster.core_hours import MostCoreHours
from jobs.state.run_cost import PredictedCost, RecordedCost, RunCost


def most_line(most: MostCoreHours) -> str:
    """What a submission takes at most."""
    line = f"at most {_hours(most.once * 3600)} core-hours, each task up to its time limit"
    if most.requeued > most.once:
        line += f" ({_hours(most.requeued * 3600)} if each is requeued as often as it may)"
    return f"{line}; whole nodes may have more CPUs than that" if most.whole_nodes else line


def predicted_line(predicted: PredictedCost, one: str, several: str) -> str:
    """What cells will take, and of how many nobody knows; they are called `one`, or `several`."""
    unknown = f"{predicted.unknown} of which no cell of the same array is done: unknown"
    if not predicted.cells:
        return f"predicted: {several}: {unknown}"
    which, whose = (one, "its") if predicted.cells == 1 else (several, "their")
    line = (
        f"predicted: {_hours(predicted.core_s)} core-hours of {predicted.cells} {which}, by the "
        f"done ones of {whose} configuration or array"
    )
    return f"{line}; {unknown}" if predicted.unknown else line


def cost_lines(cost: RunCost) -> Iterator[str]:
    """What a run has cost, what its cells that are not done will, and the energy."""
    yield _accounted_line(cost.accounted) if cost.accounted else _recorded_line(cost.recorded)
    if cost.predicted.cells or cost.predicted.unknown:
        yield predicted_line(cost.predicted, "cell that is not done", "cells that are not done")
    energy = cost.accounted.energy_j if cost.accounted else None
    if energy is not None:
        yield f"energy: {energy / 3.6e6:.3g} kWh of the nodes while the ranks ran"


def cost_json(cost: RunCost) -> dict[str, Any]:
    """For scripts."""
    return asdict(cost) | {"efficiency": cost.accounted.efficiency if cost.accounted else None}


def _accounted_line(cost: AccountedCost) -> str:
    share = cost.efficiency
    efficiency = "CPU efficiency unknown" if share is None else f"CPU efficiency {share:.0%}"
    running = f", {cost.running} of them running" if cost.running else ""
    return (
        f"cost: {_hours(cost.core_s)} core-hours of {cost.tasks} tasks{running}, as sacct has them "
        f"at {cost.at}; {efficiency}"
    )


def _recorded_line(cost: RecordedCost) -> str:
    line = (
        f"cost: {_hours(cost.core_s)} core-hours of {cost.attempts} attempts, from their ranks' "
        "start to their results, as sacct says nothing; CPU efficiency unknown"
    )
    return f"{line}; {cost.untold} attempts without a result: unknown" if cost.untold else line


def _hours(core_s: float) -> str:
    return f"{core_s / 3600:.3g}"

"""The most that a submission may take: every cell up to its time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnhpc.spec.manifest import Cell
from jobs.cluster.arrays import group_by_array, resources_for
from jobs.cluster.launch import Launch


@dataclass(frozen=True)
class MostCoreHours:
    """Of the CPUs that are asked for."""

    cells: int
    once: float
    """Where no cell is requeued."""
    requeued: float
    """Where each is, as often as it may be."""
    whole_nodes: bool
    """Whether a job holds all CPUs of its nodes, which may be more."""


def most_core_hours(cells: Sequence[Cell], launch: Launch) -> MostCoreHours:
    """Cells times ranks times CPUs a rank times the time limit."""
    hours = 0.0
    for array in group_by_array(cells):
        needs = resources_for(array.layout, launch.site, gpu=array.gpu)
        hours += len(array.cells) * needs.tasks * needs.cpus_per_task * needs.time_min / 60
    site = launch.site
    return MostCoreHours(len(cells), hours, hours * (1 + site.max_requeues), bool(site.exclusive))

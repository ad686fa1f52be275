"""The most that a submission may take: every array task up to its time limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobs.cluster.arrays import Resources
from jobs.cluster.launch import Launch


@dataclass(frozen=True)
class MostCoreHours:
    """Of the CPUs that are asked for."""

    once: float
    """Where no task is requeued."""
    requeued: float
    """Where each is, as often as it may be."""
    whole_nodes: bool
    """Whether a job holds all CPUs of its nodes, which may be more."""


def most_core_hours(asked: Iterable[tuple[int, Resources]], launch: Launch) -> MostCoreHours:
    """Tasks times ranks times CPUs a rank times the time limit, of each number of tasks."""
    hours = sum(
        count * needs.tasks * needs.cpus_per_task * needs.time_min / 60 for count, needs in asked
    )
    site = launch.site
    return MostCoreHours(hours, hours * (1 + site.max_requeues), bool(site.exclusive))

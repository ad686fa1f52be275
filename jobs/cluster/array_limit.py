"""How many tasks a job array may have here, and how many jobs the cluster takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gnnhpc.core.ask_slurm import ask
from gnnhpc.core.errors import InputError
from jobs.cluster.site import Site

MOST_TASKS = 1000
"""Tasks of an array: Slurm's default MaxArraySize of 1001 allows ids up to 1000."""


@dataclass(frozen=True)
class ClusterLimits:
    """What slurm.conf allows; None where scontrol is missing or does not say."""

    array_size: int | None = None
    """MaxArraySize: the highest task id is one less."""
    jobs: int | None = None
    """MaxJobCount: jobs that Slurm holds at once, each task of an array one of them."""


def query_limits() -> ClusterLimits:
    """The limits that scontrol shows."""
    return parse_config(ask("scontrol", "show", "config") or "")


def parse_config(text: str) -> ClusterLimits:
    """The limits in what `scontrol show config` prints."""

    def number(name: str) -> int | None:
        match = re.search(rf"^{name}\s*=\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else None

    return ClusterLimits(number("MaxArraySize"), number("MaxJobCount"))


def array_limit(site: Site, limits: ClusterLimits) -> int:
    """How many tasks an array is given at most: a round number that this cluster and site allow.

    Raises InputError where the cluster has no job arrays.
    """
    if limits.array_size == 0:
        raise InputError("--cluster", None, "slurm with MaxArraySize 0: no job arrays", "local")
    sizes = [size for size in (limits.array_size, site.max_array_size) if size is not None]
    return min([MOST_TASKS, *(max(1, size - 1) for size in sizes)])


def check_job_count(jobs: int, limits: ClusterLimits, what: str = "cells") -> None:
    """Raises InputError for more cells, or blocks, than Slurm holds jobs: sbatch would retry for
    minutes."""
    if limits.jobs is not None and jobs > limits.jobs:
        allowed = f"at most {limits.jobs} jobs in this cluster's queue (MaxJobCount)"
        raise InputError("submit", None, f"{jobs} {what}", allowed)

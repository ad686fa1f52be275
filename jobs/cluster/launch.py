"""How the ranks of a run's cells are started: with which site's settings, interpreter and code."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from gnnhpc.core.errors import InputError
from jobs.cluster.array_limit import MOST_TASKS, ClusterLimits, array_limit, query_limits
from jobs.cluster.sbatch_options import speed_options
from jobs.cluster.site import Site

COMPARED = (
    "partition",
    "constraint",
    "gres",
    "gpus_per_node",
    "cpus_per_task",
    "tasks_per_node",
    "modules",
    "setup",
    "container",
    "interface",
    "exclusive",
    "hint",
    "cpu_bind",
)
"""Settings that may decide how fast a cell runs, so that results carry them."""
THREADS_VARIABLE = "GNNHPC_THREADS"


@dataclass(frozen=True)
class Launch:
    """What is the same for all arrays that are started together."""

    site_name: str = "built-in"
    site: Site = field(default_factory=Site)
    python: str = sys.executable
    """Path of the interpreter, where the site names none."""
    live: bool = False
    """Whether the checkout's code is run, whatever code the run keeps."""
    array_limit: int = MOST_TASKS
    """Tasks of one job array; an array with more cells is submitted in parts."""

    def interpreter(self) -> str:
        """The Python command of Slurm's jobs, quoted for a shell, its container before it."""
        site = self.site
        if site.python:
            python = site.python
        elif site.activate or site.container:
            python = "python"
        else:
            python = shlex.quote(self.python)
        return f"{site.container} {python}" if site.container else python

    def compared(self) -> dict[str, Any]:
        """The site's name and those settings that decide which results may be compared."""
        settings = self.site.model_dump(mode="json", include=set(COMPARED))
        named = {key: settings[key] for key in COMPARED if settings[key]}
        return {"name": self.site_name} | named | speed_options(self.site.slurm)


def resolved(site: Site, cluster: str) -> Site:
    """The site with its CPUs and tasks set, also where they come from a default or a variable.

    A local run takes its threads from $GNNHPC_THREADS where the site sets none. Raises InputError
    if that is no number.
    """
    cpus = site.cpus_per_task
    text = os.environ.get(THREADS_VARIABLE)
    if cluster == "local" and text and "cpus_per_task" not in site.model_fields_set:
        if not text.isdigit() or int(text) < 1:
            raise InputError("environment", THREADS_VARIABLE, repr(text), "a whole number from 1")
        cpus = int(text)
    return site.model_copy(update={"cpus_per_task": cpus, "tasks_per_node": site.tasks_per_node})


def limited(launch: Launch, cluster: str) -> Launch:
    """The launch with its arrays no larger than this cluster takes.

    Raises InputError where the cluster has no job arrays.
    """
    limits = query_limits() if cluster == "slurm" else ClusterLimits()
    here = array_limit(launch.site, limits)
    return replace(launch, array_limit=min(here, launch.array_limit))


def differing_settings(here: Site, there: Site) -> list[str]:
    """Each setting in which two sites differ: `cpus_per_task 1 instead of 2`."""
    ours, theirs = (site.model_dump(mode="json") for site in (here, there))
    return [
        f"{key} {_shown(ours[key])} instead of {_shown(theirs[key])}"
        for key in ours
        if ours[key] != theirs[key]
    ]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)

"""How the ranks of a submission are started: with which site, interpreter and code."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import Any

from jobs.slurm.sbatch_options import speed_options
from jobs.slurm.site import Site

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
)
"""Settings that may decide how fast a cell runs, so that results record them."""


@dataclass(frozen=True)
class Launch:
    """What all arrays that are started together have in common."""

    site_name: str = "built-in"
    site: Site = field(default_factory=Site)
    python: str = sys.executable
    """Path of the interpreter, where the site names none."""
    live: bool = False
    """Whether the ranks run the checkout although the run keeps its code."""

    def interpreter(self) -> str:
        """The Python command of Slurm's jobs, quoted for a shell, after its container."""
        site = self.site
        if site.python:
            python = site.python
        elif site.activate or site.container:
            python = "python"
        else:
            python = shlex.quote(self.python)
        return f"{site.container} {python}" if site.container else python

    def recorded(self) -> dict[str, Any]:
        """The site's name, its CPUs and the settings that were set: what a run folder keeps."""
        sizes = self.site.model_dump(include={"cpus_per_task", "tasks_per_node"})
        return {"name": self.site_name} | sizes | self.site.settings()

    def compared(self) -> dict[str, Any]:
        """The site's name and the settings that decide which results may be compared."""
        settings = self.site.model_dump(mode="json", include=set(COMPARED))
        named = {key: settings[key] for key in COMPARED if settings[key]}
        named["cpu_bind"] = self.site.binding
        return {"name": self.site_name} | named | speed_options(self.site.slurm)

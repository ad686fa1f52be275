"""How ranks are started, and the batch script of an array: what sbatch gets, from a user too."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gnnhpc.core.provenance import ROOT, is_installed
from jobs.slurm.job_array import JobArray
from jobs.slurm.site_settings import Site
from jobs.slurm.user_sbatch_options import speed_options

if TYPE_CHECKING:
    import jinja2

COMPARED = (
    *("partition", "constraint", "gres", "gpus_per_node", "cpus_per_task", "tasks_per_node"),
    *("modules", "setup", "container", "interface", "exclusive"),
)
"""Settings that may decide how fast a cell runs, so that results record them."""


@dataclass(frozen=True)
class Launch:
    """How the ranks of all arrays of a submission are started: with which site, Python and code."""

    site_name: str = "built-in"
    site: Site = field(default_factory=Site)
    python: str = sys.executable
    """Path of the interpreter, where the site names none."""
    live: bool = False
    """Whether the ranks run the checkout although the run keeps its code."""

    def interpreter(self) -> str:
        """The Python command of Slurm's jobs, quoted for a shell, after its container."""
        site = self.site
        default = "python" if site.activate or site.container else shlex.quote(self.python)
        return " ".join(filter(None, (site.container, site.python or default)))

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


def batch_script(array: JobArray, run: Path, launch: Launch, *, script: str | None = None) -> str:
    """The text of an array's script; `script` is the name of its file."""
    needs, site = array.resources, launch.site
    code: str | None = '"$run/code"'
    if launch.live:
        # The interpreter finds an installed package; a checkout must be on PYTHONPATH.
        code = None if is_installed(ROOT) else shlex.quote(str(ROOT))
    return template("array.sbatch.j2").render(
        script=script or f"{array.name}.sbatch",
        array=array.name,
        paired=array.is_paired,
        tasks=array.array_option(site.max_parallel),
        run=str(run),
        # The array comes first, because squeue cuts long names.
        job_name=f"{array.name}@{run.name}",
        options=needs.options(),
        signal=site.signal,
        set_up=[
            *(f"module load {name}" for name in site.modules),
            *site.setup,
            *filter(None, [site.activate]),
        ],
        code=code,
        site=json.dumps(launch.compared()),
        max_requeues=site.max_requeues,
        interface=site.interface,
        cpus_per_task=site.cpus_per_task,
        tasks_per_node=needs.tasks_per_node,
        nodes=needs.nodes,
        srun_options=needs.srun_options(),
        python=launch.interpreter(),
        live=launch.live,
    )


@cache
def template(name: str) -> jinja2.Template:
    """A template beside this file, with filters that quote for a shell, sbatch and YAML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["sbatch_value"] = sbatch_value
    environment.filters["yaml"] = lambda text: yaml.safe_dump(text).splitlines()[0]
    return environment.get_template(name)


def sbatch_value(value: object) -> str:
    """A value quoted for an #SBATCH line: as for a shell, with backslashes doubled."""
    return shlex.quote(str(value).replace("\\", "\\\\"))

"""The batch script of an array: what `submit` gives to sbatch, and what a user may by hand."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gnnhpc.core.python_path import ROOT, is_installed
from jobs.slurm.job_array import JobArray
from jobs.slurm.launch import Launch

if TYPE_CHECKING:
    import jinja2


def batch_script(array: JobArray, run: Path, launch: Launch, *, script: str | None = None) -> str:
    """The text of an array's script; `script` is the name of its file."""
    needs, site = array.resources, launch.site
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
        set_up=_set_up_lines(launch),
        code=_checkout() if launch.live else '"$run/code"',
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


def _checkout() -> str | None:
    """The folder of the packages that this process runs, quoted; None where they are installed.

    The interpreter finds an installed package; a checkout must be on PYTHONPATH.
    """
    return None if is_installed(ROOT) else shlex.quote(str(ROOT))


def _set_up_lines(launch: Launch) -> list[str]:
    """Shell lines of the site that run before the ranks."""
    site = launch.site
    lines = [*(f"module load {name}" for name in site.modules), *site.setup]
    return [*lines, site.activate] if site.activate else lines


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

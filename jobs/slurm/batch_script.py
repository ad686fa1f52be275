"""The batch script of an array: what `submit` gives to sbatch, and what a user may by hand."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.core.python_path import ROOT, is_installed
from jobs.slurm.job_array import JobArray
from jobs.slurm.launch import Launch

if TYPE_CHECKING:
    import jinja2

CODE_OF_RUN = '"$run/code"'
"""The run's own code in its scripts, which find the run folder themselves."""


def checkout(home: Path = ROOT) -> str | None:
    """The folder of the packages that this process runs, quoted; None where they are installed.

    The interpreter finds an installed package; a checkout must be on PYTHONPATH.
    """
    return None if is_installed(home) else shlex.quote(str(home))


def job_name(array: str, run: Path) -> str:
    """The name of a job in squeue; the array comes first, because squeue cuts long names."""
    return f"{array}@{run.name}"


def batch_script(array: JobArray, run: Path, launch: Launch, *, script: str | None = None) -> str:
    """The text of an array's script; `script` is the name of its file."""
    needs, site = array.resources, launch.site
    return _template("array.sbatch.j2").render(
        title=_title(array),
        script=script or f"{array.name}.sbatch",
        array=array.name,
        paired=array.is_paired,
        tasks=array.array_option(site.max_parallel),
        run=str(run),
        job_name=job_name(array.name, run),
        options=needs.options(),
        signal=site.signal,
        set_up=set_up_lines(launch),
        code=checkout() if launch.live else CODE_OF_RUN,
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


def set_up_lines(launch: Launch) -> list[str]:
    """Shell lines of the site that run before the ranks."""
    site = launch.site
    lines = [*(f"module load {name}" for name in site.modules), *site.setup]
    lines += [site.activate] if site.activate else []
    return lines


def _title(array: JobArray) -> str:
    experiment = array.cells[0].experiment
    what = "block" if array.is_paired else "cell"
    count = f"{len(array.tasks)} {what}{'s' if len(array.tasks) != 1 else ''}"
    if array.is_paired:
        most, model = array.most_cells, experiment.model.name
        return f"Array {array.name}: {count} of up to {most} cells of {model},"
    ranks = array.cells[0].world_size
    each = f"{ranks} rank{'s' if ranks != 1 else ''} each"
    model, layout = experiment.model.name, experiment.layout
    return f"Array {array.name}: {count} of {model} in layout {layout} ({each}),"


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["sbatch_value"] = sbatch_value
    return environment.get_template(name)


def sbatch_value(value: object) -> str:
    """A value quoted for an #SBATCH line: as for a shell, with backslashes doubled."""
    return shlex.quote(str(value).replace("\\", "\\\\"))

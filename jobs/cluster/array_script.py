"""The batch script of an array, which a user can submit by hand, and its set-up lines."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import jinja2

from gnnhpc.core.python_path import ROOT, is_installed
from gnnhpc.ranks.environment import MAX_REQUEUES_VARIABLE, SITE_VARIABLE
from jobs.cluster.arrays import Array, Resources, array_range, job_name
from jobs.cluster.launch import Launch

TEMPLATES = Path(__file__).parents[1] / "templates"
CODE_OF_RUN = '"$run/code"'
"""The run's own code, in its scripts: they find the run where it lies now."""


def checkout(home: Path = ROOT) -> str | None:
    """The folder of the packages that this process runs, quoted; None where they are installed.

    An installed package is found by the interpreter, a checkout must be on PYTHONPATH.
    """
    return None if is_installed(home) else shlex.quote(str(home))


def setup_lines(launch: Launch, resources: Resources, code: str | None, array: str) -> list[str]:
    """Shell lines that run before the ranks, in the batch script and in submitit's jobs.

    The shell must know the run's folder as $run and the cell's index in the array as $index.
    `code` is the folder of our packages as a shell has it, None to leave them to the interpreter.
    A line of the site that fails ends the job with a failure record of the cell.
    """
    site = launch.site
    given = [*(f"module load {name}" for name in site.modules), *site.setup]
    given += [site.activate] if site.activate else []
    any_checked = bool(given or site.scratch)
    lines = _checking(array) if any_checked else []
    lines += [part for line in given for part in _checked(line)]
    # Python must not import a jobs.py that lies in the folder the job was submitted from.
    lines.append("export PYTHONSAFEPATH=1")
    if code is not None:
        lines.append(f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}")
    lines.append(f"export {SITE_VARIABLE}={shlex.quote(json.dumps(launch.compared()))}")
    lines.append(f"export {MAX_REQUEUES_VARIABLE}={site.max_requeues}")
    threads = f"${{SLURM_CPUS_PER_TASK:-{resources.cpus_per_task}}}"
    lines.append(f'export OMP_NUM_THREADS="{threads}"')
    if site.interface:
        name = shlex.quote(site.interface)
        lines.append(f"export GLOO_SOCKET_IFNAME={name} NCCL_SOCKET_IFNAME={name}")
    if site.scratch:
        # Double quotes: the shell expands variables in the path, such as $SLURM_JOB_ID.
        scratch = '"' + site.scratch.replace('"', '\\"') + '"'
        lines.append(f"export TMPDIR={scratch}")
        lines += _checked('mkdir -p "$TMPDIR"')
    return [*lines, "gnnhpc_done"] if any_checked else lines


def _checking(array: str) -> list[str]:
    """The shell functions that look at how a line has ended."""
    # As the manifest's lines have it.
    of_array = f'"array": {json.dumps(array)}'
    functions = (TEMPLATES / "set_up.sh").read_text(encoding="utf-8").splitlines()
    return [f"gnnhpc_cell={shlex.quote(of_array)}", *functions]


def _checked(line: str) -> list[str]:
    """The line at the script's top level, where what it defines lasts, and a look at its end."""
    return [
        f"gnnhpc_line={shlex.quote(line)}",
        'eval "$gnnhpc_line" >"$gnnhpc_words" 2>&1',
        "gnnhpc_check $?",
    ]


def render_array_script(
    array: Array, run: Path, needs: Resources, launch: Launch, *, home: Path = ROOT
) -> str:
    """The text of RUN/arrays/<model>-<layout>.sbatch, or of a part's script."""
    code = checkout(home) if launch.live else CODE_OF_RUN
    return _template().render(
        array=array.name,
        label=array.label,
        offset=array.offset,
        first=array.indices[0],
        last=array.indices[-1],
        count=len(array.cells),
        model=array.cells[0].experiment.model.name,
        layout=str(array.layout),
        ranks=array.layout.world_size,
        run=str(run),
        job_name=job_name(array.label, run.name),
        range=array_range(array.tasks, needs.max_parallel),
        options=needs.options(),
        cpu_bind=needs.cpu_bind,
        signal=needs.signal_s,
        setup_lines=setup_lines(launch, needs, code, array.name),
        python=launch.interpreter(),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["sbatch_value"] = sbatch_value
    return environment.get_template("array.sbatch.j2")


def sbatch_value(value: object) -> str:
    """A value quoted for an #SBATCH line: as for a shell, with backslashes doubled."""
    return shlex.quote(str(value).replace("\\", "\\\\"))

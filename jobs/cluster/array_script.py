"""The batch script of an array, which a user can submit by hand, and its set-up lines."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import jinja2

from gnnhpc.core.python_path import ROOT, is_installed
from gnnhpc.distributed.environment import MAX_REQUEUES_VARIABLE, SIGNAL_VARIABLE, SITE_VARIABLE
from jobs.cluster.arrays import Array, Resources, array_range, job_name
from jobs.cluster.blocks import BlockArray
from jobs.cluster.launch import Launch

TEMPLATES = Path(__file__).parents[1] / "templates"
CODE_OF_RUN = '"$run/code"'
"""The run's own code, in its scripts: they find the run where it lies now."""
_STEP_OF_BLOCK = (
    '--nodes=$((ranks / tasks)) --ntasks="$ranks" --ntasks-per-node="$tasks" --relative=0'
)
"""The nodes of one of a block's cells: the first, so that those of smaller layouts are among those
of larger ones."""


def checkout(home: Path = ROOT) -> str | None:
    """The folder of the packages that this process runs, quoted; None where they are installed.

    An installed package is found by the interpreter, a checkout must be on PYTHONPATH.
    """
    return None if is_installed(home) else shlex.quote(str(home))


def setup_lines(
    launch: Launch, resources: Resources, code: str | None, array: str | None
) -> list[str]:
    """Shell lines that run before the ranks, in the batch script and in submitit's jobs.

    The shell must know the run's folder as $run and the cell's index in the array as $index, or,
    without an `array`, the cell's id as $cell.
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
    lines.append(f"export {SIGNAL_VARIABLE}={resources.signal_s}")
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


def _checking(array: str | None) -> list[str]:
    """The shell functions that look at how a line has ended."""
    cell = 'gnnhpc_id="$cell"'
    if array is not None:
        # As the manifest's lines have it.
        of_array = f'"array": {json.dumps(array)}'
        cell = f"gnnhpc_cell={shlex.quote(of_array)}"
    functions = (TEMPLATES / "set_up.sh").read_text(encoding="utf-8").splitlines()
    return [cell, *functions]


def _checked(line: str) -> list[str]:
    """The line at the script's top level, where what it defines lasts, and a look at its end."""
    return [
        f"gnnhpc_line={shlex.quote(line)}",
        'eval "$gnnhpc_line" >"$gnnhpc_words" 2>&1',
        "gnnhpc_check $?",
    ]


def render_script(
    array: Array | BlockArray, run: Path, needs: Resources, launch: Launch, *, home: Path = ROOT
) -> str:
    """The text of RUN/arrays/<label>.sbatch; of blocks it is also what submit gives sbatch."""
    code = checkout(home) if launch.live else CODE_OF_RUN
    blocks = isinstance(array, BlockArray)
    first, last = array.indices[0], array.indices[-1]
    facts: dict[str, object] = {
        "array": array.name,
        "label": array.label,
        "offset": array.offset,
        "first": first,
        "last": last,
        "count": len(array.indices),
        "model": array.cells[0].experiment.model.name,
        "run": str(run),
        "job_name": job_name(array.label, run.name),
        "range": array_range(array.tasks, needs.max_parallel),
        "options": needs.options(),
        "cpu_bind": needs.cpu_bind,
        "signal": needs.signal_s,
        "setup_lines": setup_lines(launch, needs, code, None if blocks else array.name),
        "python": launch.interpreter(),
    }
    if isinstance(array, BlockArray):
        return _template("block.sbatch.j2").render(
            facts,
            most=max(len(block.cells) for block in array.blocks),
            max_requeues=launch.site.max_requeues,
            tasks_per_node=needs.tasks_per_node,
            step=_STEP_OF_BLOCK,
            flags=" --live" if launch.live else "",
        )
    return _template("array.sbatch.j2").render(
        facts, layout=str(array.layout), ranks=array.processes.world_size, step="", flags=""
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
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

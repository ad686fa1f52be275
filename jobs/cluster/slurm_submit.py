"""Submitting an array to Slurm through submitit, with the manifest's own indices."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.array_executor import ArrayExecutor, ScriptExecutor, outside_of_jobs
from jobs.cluster.array_script import checkout, render_script, setup_lines
from jobs.cluster.arrays import Array, Resources, array_range, job_name, log_pattern
from jobs.cluster.blocks import BlockArray
from jobs.cluster.launch import Launch
from jobs.cluster.sbatch_retries import Sought, submit_once
from jobs.cluster.shell_defaults import check_shell


def check_slurm_is_usable(run: Path, chosen: str | None = None) -> None:
    """Raises InputError without sbatch or srun, or for a path that log names cannot contain.

    `chosen` says why it is to be Slurm, where nobody asked for it.
    """
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            allowed = "--cluster local, which runs it here" if chosen else "local"
            found = f"{chosen or 'slurm'}, but no {program} here"
            raise InputError("--cluster", None, found, allowed)
    if any(c in str(run.absolute()) for c in "%\\\n"):
        raise InputError(run, None, "a path with %, backslash or line break", "one without")


def submit_array(
    paths: RunPaths,
    array: Array | BlockArray,
    needs: Resources,
    launch: Launch,
    recorded: Collection[str] = (),
) -> str:
    """Submit these cells, or blocks, as one job array; returns Slurm's job id at once.

    submitit writes the batch script and calls sbatch; the jobs run what the array's own script
    runs, and need nothing that is not in the run folder by then. `recorded` are the ids of the
    run's jobs so far. Raises as `submit_once` does, and InputError for variables of the shell that
    would decide speed unrecorded.
    """
    with outside_of_jobs():
        check_shell(needs.options())
    name = job_name(array.label, paths.root.name)
    sought = Sought(paths.root, name, recorded)
    if isinstance(array, BlockArray):
        whole = ScriptExecutor(submitit_folder(paths), launch.interpreter(), needs.options())
        script = render_script(array, paths.root, needs, launch)
        return submit_once(whole, script, array.label, sought)
    code = checkout() if launch.live else shlex.quote(str(paths.code))
    executor = ArrayExecutor(submitit_folder(paths), launch.interpreter(), needs.options())
    log, into_log = log_pattern(paths.root, array.name), []
    if array.offset:
        # Slurm knows the task's id, and logs are named by the cell's index.
        log = Path(os.devnull)
        name_of_log = f'{shlex.quote(array.name)}-"$index-$SLURM_ARRAY_JOB_ID.log"'
        into_log.append(f'exec >>"$run/logs/"{name_of_log} 2>&1')
    known = {"partition", "account", "qos", "constraint", "gres", "mem"}
    options = {name.replace("-", "_"): value for name, value in needs.options().items()}
    ours = ("nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "time", *known)
    executor.update_parameters(
        **{name: value for name, value in options.items() if name in known},
        job_name=name,
        comment=str(paths.root),
        nodes=needs.nodes,
        ntasks_per_node=needs.tasks_per_node,
        cpus_per_task=needs.cpus_per_task,
        gpus_per_node=needs.gpus_per_node,
        time=needs.time_min,
        signal_delay_s=needs.signal_s,
        setup=[
            "umask 022",
            "trap : TERM USR1 USR2",
            f"run={shlex.quote(str(paths.root))}",
            f"index=$(({array.offset} + SLURM_ARRAY_TASK_ID))",
            *into_log,
            *setup_lines(launch, needs, code, array.name),
        ],
        stderr_to_stdout=True,
        wckey=None,
        # Since Slurm 22.05 srun does not inherit CPUs per task from the job.
        srun_args=[
            "--kill-on-bad-exit=1",
            "--label",
            "--output=all",
            f"--cpus-per-task={needs.cpus_per_task}",
            *([f"--cpu-bind={needs.cpu_bind}"] if needs.cpu_bind else []),
        ],
        additional_parameters={
            "array": array_range(array.tasks, needs.max_parallel),
            "output": str(log),
            "requeue": True,
            **{name: value for name, value in needs.options().items() if name not in ours},
        },
    )
    return submit_once(executor, cell_command(paths, array.name, launch), array.label, sought)


def cell_command(paths: RunPaths, array: str, launch: Launch) -> str:
    """The shell command that each rank of the array's jobs runs, as in the array's own script."""
    manifest = shlex.quote(str(paths.manifest))
    cell = f'--array {shlex.quote(array)} --index "$index"'
    live = " --live" if launch.live else ""
    return f"{launch.interpreter()} -u -m gnnhpc run --manifest {manifest} {cell}{live}"


def submitit_folder(paths: RunPaths) -> Path:
    """Create submitit's folder, for this user alone: local ranks run a pickle that lies in it.

    Raises InputError if it belongs to somebody else.
    """
    folder = paths.root / ".submitit"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise InputError(
            folder, None, f"{error.strerror}", "a run folder of this user's own"
        ) from None
    return folder

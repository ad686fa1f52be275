"""Submitting an array to Slurm through submitit, with the manifest's own indices."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import submitit

from gnnhpc.core.cli_support import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.array_script import checkout, setup_lines
from jobs.cluster.arrays import Array, Resources, array_range, job_name, log_pattern
from jobs.cluster.launch import Launch
from jobs.task import CellTask

_UNREACHABLE = re.compile(r"unable to contact|timed out|zero bytes|configuration", re.IGNORECASE)


def check_slurm_is_usable(run: Path) -> None:
    """Raises InputError without sbatch or srun, or for a path that log names cannot contain."""
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise InputError("--cluster", None, f"slurm, but no {program} here", "local")
    if any(c in str(run.absolute()) for c in "%\\\n"):
        raise InputError(run, None, "a path with %, backslash or line break", "one without")


def submit_array(paths: RunPaths, array: Array, needs: Resources, launch: Launch) -> str:
    """Submit these cells as one job array; returns Slurm's job id at once.

    submitit numbers an array's jobs from 0, and makes no array of a single job. So one task is
    submitted with the manifest's indices as --array; each job looks for a pickle named after job
    and index, so these names are links to that task's pickle. A job waits a minute for its pickle.
    """
    folder = pickle_folder(paths)
    code = checkout() if launch.live else shlex.quote(str(paths.code))
    executor = submitit.SlurmExecutor(folder=folder, python=launch.interpreter())
    log = str(log_pattern(paths.root, array.name))
    known = {"partition", "account", "qos", "constraint", "gres", "mem"}
    options = {name.replace("-", "_"): value for name, value in needs.options().items()}
    executor.update_parameters(
        **{name: value for name, value in options.items() if name in known},
        job_name=job_name(array.name, paths.root.name),
        comment=str(paths.root),
        nodes=needs.nodes,
        ntasks_per_node=needs.tasks_per_node,
        cpus_per_task=needs.cpus_per_task,
        gpus_per_node=needs.gpus_per_node,
        time=needs.time_min,
        signal_delay_s=needs.signal_s,
        setup=["umask 022", "trap : TERM USR1 USR2", *setup_lines(launch, needs, code)],
        stderr_to_stdout=True,
        wckey=None,
        # Since Slurm 22.05 srun does not inherit CPUs per task from the job.
        srun_args=[
            "--kill-on-bad-exit=1",
            "--label",
            "--output=all",
            f"--cpus-per-task={needs.cpus_per_task}",
        ],
        additional_parameters={
            "array": array_range(array.indices, needs.max_parallel),
            "output": log,
            "requeue": True,
        },
    )
    try:
        # submitit prints sbatch's message too; the error below already contains it.
        with contextlib.redirect_stderr(io.StringIO()):
            job = executor.submit(CellTask(str(paths.manifest), array.name, live=launch.live))
    except submitit.core.utils.FailedJobError as error:
        raise sbatch_error(str(error), array.name) from None
    pickle = job.paths.submitted_pickle
    for index in array.indices:
        (folder / f"{job.job_id}_{index}_submitted.pkl").symlink_to(pickle.name)
    return str(job.job_id)


def pickle_folder(paths: RunPaths) -> Path:
    """Create the folder of submitit's pickles, for this user alone: a job runs what it loads.

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


def sbatch_error(words: str, array: str) -> GnnhpcError:
    """sbatch's message on one line: a GnnhpcError if Slurm is down, else an InputError."""
    line = (
        " ".join(words.replace("sbatch: error:", "").split()) or "sbatch failed without a message"
    )
    if _UNREACHABLE.search(line):
        return GnnhpcError(f"sbatch {array}: {line}")
    allowed = f"what this cluster offers: {as_typed('jobs', 'site check')}"
    return InputError(f"sbatch {array}", None, line, allowed)

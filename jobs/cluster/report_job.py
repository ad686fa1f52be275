"""The job that writes a run's report once all jobs of a submission have ended."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from gnnhpc.core.layout import Layout
from gnnhpc.records.code_snapshot import REPORTING
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.array_executor import ArrayExecutor
from jobs.cluster.array_script import checkout
from jobs.cluster.arrays import Resources, after_jobs, job_name, resources_for
from jobs.cluster.launch import Launch
from jobs.cluster.sbatch_retries import Sought, submit_once
from jobs.cluster.slurm_submit import submitit_folder

REPORT = "report"
"""Where array's names stand: in the job's name, and in that of its log."""

ACCOUNTING_S = 60
"""How long to wait for Slurm's accounting, which hears of the end of jobs later than this job."""


def submit_report(
    paths: RunPaths, jobs: Sequence[str], launch: Launch, recorded: Collection[str] = ()
) -> str:
    """Submit one task that runs when these jobs have ended, however they did; its id.

    It asks the accounting what the run cost, and writes the report. Raises as `submit_once` does.
    """
    needs = report_needs(launch, jobs)
    executor = ArrayExecutor(submitit_folder(paths), launch.interpreter(), needs.options())
    name = job_name(REPORT, paths.root.name)
    ours = ("nodes", "ntasks-per-node", "cpus-per-task", "time")
    executor.update_parameters(
        job_name=name,
        comment=str(paths.root),
        nodes=needs.nodes,
        ntasks_per_node=needs.tasks_per_node,
        cpus_per_task=needs.cpus_per_task,
        time=needs.time_min,
        setup=report_setup(paths, launch),
        stderr_to_stdout=True,
        wckey=None,
        srun_args=["--output=all", f"--cpus-per-task={needs.cpus_per_task}"],
        additional_parameters={
            "output": str(paths.logs / f"{REPORT}-%j.log"),
            **{name: value for name, value in needs.options().items() if name not in ours},
        },
    )
    sought = Sought(paths.root, name, recorded)
    return submit_once(executor, report_command(paths, launch), REPORT, sought)


def report_needs(launch: Launch, jobs: Sequence[str]) -> Resources:
    """One task with a rank's CPUs, beside other jobs: nothing is measured."""
    needs = resources_for(Layout(), launch.site)
    return after_jobs(replace(needs, exclusive=False, max_parallel=None), jobs)


def report_setup(paths: RunPaths, launch: Launch) -> list[str]:
    """The site's lines, each of which must succeed, and where the packages are."""
    site = launch.site
    lines = [*(f"module load {name}" for name in site.modules), *site.setup]
    lines += [site.activate] if site.activate else []
    checked = []
    for line in lines:
        said = shlex.quote(f"error: set-up line '{line}' failed")
        checked.append(f"eval {shlex.quote(line)} || {{ echo {said} >&2; exit 1; }}")
    home = report_home(paths, launch)
    found = [] if home is None else [f"export PYTHONPATH={home}${{PYTHONPATH:+:$PYTHONPATH}}"]
    return ["umask 022", *checked, "export PYTHONSAFEPATH=1", *found]


def report_home(paths: RunPaths, launch: Launch) -> str | None:
    """The folder of the packages, quoted: the run's own code where it has what reports need."""
    keeps = (paths.code / REPORTING).is_dir() and not launch.live
    return shlex.quote(str(paths.code)) if keeps else checkout()


def report_command(paths: RunPaths, launch: Launch) -> str:
    """What the cost was is asked first; that it is not known is no reason for no report.

    The signal that tells ranks to save before a job's end, which submitit asks Slurm for, would end
    a report at once.
    """
    python, run = launch.interpreter(), shlex.quote(str(paths.root))
    cost = f"--cost --patience {ACCOUNTING_S}"
    commands = (
        f"trap '' USR2; {python} -m jobs status {cost} {run}; {python} -m analysis report {run}"
    )
    return f"bash -c {shlex.quote(commands)}"

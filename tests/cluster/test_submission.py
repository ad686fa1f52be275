"""What a submitted array's ranks find around them, and what the same script's by hand find."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import pytest
import yaml

from gnnhpc.records.run_paths import RunPaths
from tests.cluster.runs import ROOT, TINY_GAT, Run, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PP2 = TINY_GAT | {"layouts": ["pp2"], "microbatches": [2]}
OF_THE_JOB = (
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_SRUN_COMM_PORT",
    "SRUN_DEBUG",
)
"""Variables that differ from job to job, whoever submits it."""


def recording(user: User) -> dict[str, Any]:
    """Site settings whose interpreter keeps each rank's variables, limits, mask and folder."""
    wrapper = user.home / "python"
    wrapper.write_text(
        "#!/bin/bash\n"
        f"file={shlex.quote(str(user.home))}/$SLURM_ARRAY_JOB_ID-$SLURM_PROCID\n"
        '{ env; echo "umask=$(umask)"; ulimit -a; trap; nproc; } >"$file"\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    wrapper.chmod(0o755)
    return {"python": shlex.quote(str(wrapper)), "setup": ["export FROM_SETUP=1"]}


def surroundings(user: User, job: str, rank: int) -> set[str]:
    lines = (user.home / f"{job}-{rank}").read_text().splitlines()
    return {line for line in lines if line.partition("=")[0] not in OF_THE_JOB}


def test_a_submitted_array_and_its_script_by_hand_set_up_the_same(user: User) -> None:
    run = user.submit([PP2], name="same", site=recording(user) | {"cpus_per_task": 2})
    cell = run.cells[0]
    assert run.result(cell).valid, run.logs()
    run.wait_until_idle()
    ours = run.job("gat-pp2")
    env = {"PYTHONPATH": str(ROOT), "GNNHPC_CACHE": str(user.home / "cache")}
    by_hand = run.paths.script("gat-pp2")
    done = user.cluster.run("sbatch", "--parsable", by_hand, cwd=user.home, env=env)
    assert run.result(cell, 2).valid, run.logs()
    for rank in (0, 1):
        submitted = surroundings(user, ours, rank)
        hand = surroundings(user, done.stdout.strip(), rank)
        assert "FROM_SETUP=1" in submitted
        assert "SLURM_CPUS_PER_TASK=2" in submitted
        # submitit's mark of its own jobs is all that tells the two apart.
        assert submitted ^ hand <= {"SUBMITIT_EXECUTOR=slurm"}
    assert run.result(cell).final == run.result(cell, 2).final


def test_a_job_that_submits_hands_nothing_of_its_own_on(user: User) -> None:
    """Memory asked for by CPU, in the job that submits, and by node, in the array, exclude another.

    What a user sets for sbatch is handed on.
    """
    file = user.home / "spec.yaml"
    file.write_text(yaml.safe_dump({"name": "nested", "grids": [PP2]}))
    site = user.site(recording(user) | {"mem": "2G"})
    command = [sys.executable, "-m", "jobs", "submit", file, "--runs", user.runs, *site]
    line = shlex.join(str(word) for word in command)
    outer = ("--mem-per-cpu=100M", "--hint=nomultithread", f"--output={user.home}/outer")
    env = {"PYTHONPATH": str(ROOT), "GNNHPC_CACHE": str(user.home / "cache")}
    env |= {"SBATCH_REQUEUE": "1", "MASTER_PORT": "1", "RANK": "7", "WORLD_SIZE": "9"}
    user.cluster.run("sbatch", *outer, "--wrap", line, cwd=user.home, env=env)
    run = Run(user, RunPaths(user.runs / "nested"))
    said = user.home / "outer"
    wait_for(run.paths.submissions.exists, f"the submission, of which {said} has the words")
    assert run.result(run.cells[0]).valid, run.logs()
    found = surroundings(user, run.job("gat-pp2"), 0)
    assert "SBATCH_REQUEUE=1" in found
    names = {line.partition("=")[0] for line in found}
    assert names.isdisjoint({"SLURM_MEM_PER_CPU", "SLURM_HINT", "MASTER_PORT", "RANK"})

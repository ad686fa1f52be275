"""A job is requeued after a warning of Slurm's, alone; and other jobs on its nodes are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.distributed import slurm_job
from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.slurm_job import (
    OtherJobs,
    is_interrupted,
    other_jobs,
    requeue,
    requeues_used_up,
)
from tests.distributed.test_environment import SRUN, TORCHRUN, without


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins for Slurm's programs."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_job, "_TIMEOUT_OF_OTHERS_S", 0.5)
    return tmp_path


def says(folder: Path, program: str, text: str, first: str = "") -> None:
    """A program that prints a text, and writes down what it was asked."""
    path = folder / program
    path.write_text(f'#!/bin/sh\necho "$*" >> "{folder}/asked"\n{first}\necho "{text}"\n')
    path.chmod(0o755)


def slurm(**changes: str) -> Environment:
    return read_environment(SRUN | changes)


def test_a_job_is_requeued_without_the_other_tasks_of_its_array(programs: Path) -> None:
    """The last task of an array has the array's own job id, which would requeue its siblings."""
    says(programs, "scontrol", "")
    requeue(slurm(SLURM_JOB_ID="1230"))
    no_array = without(without(SRUN, "SLURM_ARRAY_JOB_ID"), "SLURM_ARRAY_TASK_ID")
    requeue(read_environment(no_array))
    assert (programs / "asked").read_text() == "requeue 1230_4\nrequeue 1234\n"


def test_requeues_have_an_end() -> None:
    last = slurm(SLURM_RESTART_COUNT="5")
    reported = "requeued 5 times already, and max_requeues is 5: a rerun resumes"
    assert requeues_used_up(last, 6) == reported
    assert requeues_used_up(last, 5) is None
    assert requeues_used_up(slurm(GNNHPC_MAX_REQUEUES="6"), 6) is None
    assert requeues_used_up(read_environment(TORCHRUN), 6) is None, "no job of Slurm"


@pytest.mark.parametrize("env", [SRUN, SRUN | TORCHRUN])
def test_a_time_limit_and_a_preemption_interrupt_a_job(programs: Path, env: dict[str, str]) -> None:
    environment = read_environment(env)
    for warning in ("SIGUSR1", "SIGUSR2"):
        assert is_interrupted(environment, warning)
    assert not (programs / "asked").exists()
    says(programs, "scontrol", "   PreemptTime=None")
    for of_user in ("SIGTERM", "SIGINT", None):
        assert not is_interrupted(environment, of_user)
    says(programs, "scontrol", "   PreemptTime=2026-11-21T04:03:30")
    assert is_interrupted(environment, "SIGTERM")
    assert (programs / "asked").read_text() == "show job 1230_4\n" * 2
    for outside in (TORCHRUN, {}):
        assert not is_interrupted(read_environment(outside), "SIGUSR2")


NODES = "NodeName=n1 CPUAlloc=14 CPUTot=16 State=MIXED\nNodeName=n2 CPUAlloc=9 CPUTot=16\n"


def test_jobs_on_the_same_nodes_are_known_where_slurm_answers(programs: Path) -> None:
    job = slurm(SLURM_JOB_NODELIST="n[1-2]", SLURM_JOB_CPUS_PER_NODE="7(x2)")
    says(programs, "squeue", "1234\n77\n1234\n5\n77")
    says(programs, "scontrol", NODES)
    assert other_jobs(job) == OtherJobs(("5", "77"), 23 - 14)
    says(programs, "scontrol", "", first="exit 1")
    assert other_jobs(job) == OtherJobs(("5", "77"), None)
    for silent in ("sleep 60", "exit 1"):
        says(programs, "squeue", "1234", first=silent)
        assert other_jobs(job) is None

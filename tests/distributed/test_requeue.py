"""Another go is asked for after a warning of Slurm's, for this task alone, and never in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.requeue import is_interrupted, requeue, requeues_used_up
from tests.distributed.test_environment import SRUN, TORCHRUN, without


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for scontrol writes what it was asked."""
    said = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\necho "$*" >> "{said}"\n'
        '[ "$1" != show ] || echo "   PreemptTime=${PREEMPTED:-None}"\n[ "$2" != 666 ]\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return said


def slurm(**changes: str) -> Environment:
    return read_environment(SRUN | changes)


def test_a_job_is_requeued_without_the_other_tasks_of_its_array(asked: Path) -> None:
    """The last task of an array has the array's own job id, which would requeue its siblings."""
    assert requeue(slurm(SLURM_JOB_ID="1230"))
    no_array = without(without(SRUN, "SLURM_ARRAY_JOB_ID"), "SLURM_ARRAY_TASK_ID")
    assert requeue(read_environment(no_array))
    assert asked.read_text() == "requeue 1230_4\nrequeue 1234\n"


def test_requeues_have_an_end() -> None:
    last = slurm(SLURM_RESTART_COUNT="5")
    reported = "requeued 5 times already, and max_requeues is 5: a rerun resumes"
    assert requeues_used_up(last, 6) == reported
    assert requeues_used_up(last, 5) is None
    assert requeues_used_up(slurm(GNNHPC_MAX_REQUEUES="6"), 6) is None
    assert requeues_used_up(read_environment(TORCHRUN), 6) is None, "no job of Slurm"


@pytest.mark.parametrize("env", [SRUN, SRUN | TORCHRUN])
def test_a_time_limit_and_a_preemption_interrupt_a_job(
    asked: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    environment = read_environment(env)
    for warning in ("SIGUSR1", "SIGUSR2"):
        assert is_interrupted(environment, warning)
    assert not asked.exists()
    for of_user in ("SIGTERM", "SIGINT", None):
        assert not is_interrupted(environment, of_user)
    monkeypatch.setenv("PREEMPTED", "2026-11-21T04:03:30")
    assert is_interrupted(environment, "SIGTERM")
    assert asked.read_text() == "show job 1230_4\n" * 2


@pytest.mark.parametrize("env", [TORCHRUN, {}])
def test_outside_slurm_there_is_nobody_to_ask(asked: Path, env: dict[str, str]) -> None:
    assert not is_interrupted(read_environment(env), "SIGUSR2")
    assert not asked.exists()

"""Another go is asked for after a warning of Slurm's, for this task alone, and never in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.requeue import (
    requeue_if_interrupted,
    requeued_too_often,
    requeues_used_up,
)
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


@pytest.mark.parametrize("warning", ["SIGUSR1", "SIGUSR2"])
def test_a_warning_of_the_time_limit_requeues_this_task_alone(asked: Path, warning: str) -> None:
    """The last task of an array has the array's own job id, which would requeue its siblings."""
    assert requeue_if_interrupted(slurm(SLURM_JOB_ID="1230"), warning)
    no_array = without(without(SRUN, "SLURM_ARRAY_JOB_ID"), "SLURM_ARRAY_TASK_ID")
    assert requeue_if_interrupted(read_environment(no_array), warning)
    assert asked.read_text() == "requeue 1230_4\nrequeue 1234\n"


def test_a_job_requeued_as_often_as_it_may_be_is_not_requeued(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = slurm(SLURM_RESTART_COUNT="5")
    reported = "requeued 5 times already, and max_requeues is 5: a rerun resumes"
    assert requeues_used_up(last, "SIGUSR2") == reported
    assert not requeue_if_interrupted(last, "SIGUSR2")
    assert not asked.exists()
    # Cancelled, and not for another job: nobody wanted to requeue it.
    assert requeues_used_up(last, "SIGTERM") is None
    monkeypatch.setenv("PREEMPTED", "2026-11-21T04:03:30")
    assert requeues_used_up(last, "SIGTERM") == reported
    for count in ("4", "5"):
        more = slurm(SLURM_RESTART_COUNT=count, GNNHPC_MAX_REQUEUES="6")
        assert requeues_used_up(more, "SIGUSR2") is None
        assert requeue_if_interrupted(more, "SIGUSR2")
        assert requeued_too_often(more) is None
    assert requeued_too_often(last) is None
    assert requeued_too_often(slurm(SLURM_RESTART_COUNT="6")) is not None
    assert requeued_too_often(read_environment(TORCHRUN | {"SLURM_RESTART_COUNT": "6"})) is None


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT", None])
def test_a_stopped_job_ends(asked: Path, signal: str | None) -> None:
    assert not requeue_if_interrupted(slurm(), signal)
    assert not asked.exists() or "requeue" not in asked.read_text()


def test_a_job_that_is_stopped_for_another_one_is_requeued(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREEMPTED", "2026-11-21T04:03:30")
    assert requeue_if_interrupted(slurm(SLURM_JOB_ID="1230"), "SIGTERM")
    assert asked.read_text() == "show job 1230_4\nrequeue 1230_4\n"


@pytest.mark.parametrize("env", [TORCHRUN, {}])
def test_outside_slurm_there_is_nobody_to_ask(asked: Path, env: dict[str, str]) -> None:
    assert not requeue_if_interrupted(read_environment(env), "SIGUSR2")
    assert not asked.exists()


def test_a_job_whose_step_starts_its_ranks_by_torchrun_is_requeued_too(asked: Path) -> None:
    assert requeue_if_interrupted(read_environment(SRUN | TORCHRUN), "SIGUSR2")
    assert asked.read_text() == "requeue 1230_4\n"


def test_slurm_may_refuse(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = without(SRUN, "SLURM_ARRAY_JOB_ID") | {"SLURM_JOB_ID": "666"}
    assert not requeue_if_interrupted(read_environment(plain), "SIGUSR2")
    assert "job 666 could not be requeued" in capsys.readouterr().err

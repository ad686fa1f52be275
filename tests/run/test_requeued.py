"""A job that is requeued after its result has nothing to do; whoever asks for the cell again does.

Real ranks with torchrun's variables, in what says that it is a task of a Slurm array.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import EXIT_FAILED, EXIT_UNFINISHED
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import read_environment
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.worker.run_cell import finished_before
from tests.distributed.test_environment import SRUN
from tests.run.test_failures import at
from tests.tools.cells import Ran, gat, manifest_of, run
from tests.tools.forked import Plant
from tests.tools.make_run import rewrite_result

TASK = {
    "SLURM_JOB_ID": "1234",
    "SLURM_ARRAY_JOB_ID": "1230",
    "SLURM_ARRAY_TASK_ID": "4",
    "SLURM_CLUSTER_NAME": "lab",
}
AGAIN = TASK | {"SLURM_RESTART_COUNT": "1"}
STEPS: dict[str, Any] = {"train_steps": 3, "test_steps": 1, "test_every": 3, "warmup_steps": 1}
CELL = gat(layout="pp2", **STEPS)


def start(root: Path, env: dict[str, str], plant: Plant | None = None) -> Ran:
    """One more start of the one cell of a run."""
    return run(root, read_manifest(RunPaths(root).manifest)[0], env=env, plant=plant)


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.distributed
def test_only_the_same_job_started_again_after_its_result_has_nothing_to_do(tmp_path: Path) -> None:
    manifest_of(tmp_path, CELL)
    done = start(tmp_path, TASK)
    assert done.result.valid
    before = contents(RunPaths(tmp_path).cells)
    again = start(tmp_path, AGAIN)
    assert set(again.statuses) == {0}, again.err
    said = "nothing to do, attempt 1 of this job is done and valid; it was requeued after its resul"
    assert again.out[0].startswith(f"{again.cell.id}: {said}")
    assert contents(RunPaths(tmp_path).cells) == before

    def found(env: dict[str, str]) -> bool:
        cell = RunPaths(tmp_path).cell(done.cell.id)
        return finished_before(cell, read_environment(env)) is not None

    assert found(SRUN | AGAIN)
    assert not found(SRUN | TASK), "its first start"
    assert not found(SRUN | AGAIN | {"SLURM_ARRAY_TASK_ID": "5"}), "another task"
    assert not found(SRUN | AGAIN | {"SLURM_CLUSTER_NAME": "another"})
    rewrite_result(done.attempt.result, lambda result: result.update(status="interrupted"))
    assert not found(SRUN | AGAIN)


def warn_of_the_time_limit() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


@pytest.mark.distributed
def test_a_job_is_requeued_as_often_as_the_site_allows(tmp_path: Path) -> None:
    """Slurm may requeue it once more, where a node fails."""
    manifest_of(tmp_path, gat(layout="pp2", check="off", **STEPS))
    asked = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$*" >>"{asked}"\n')
    scontrol.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GNNHPC_MAX_REQUEUES": "1"}
    allowed = "and max_requeues is 1: a rerun resumes"
    for restarts, status, steps, error in (
        (0, EXIT_UNFINISHED, 1, None),
        (1, EXIT_UNFINISHED, 2, f"requeued 1 times already, {allowed}"),
        (2, EXIT_FAILED, 0, f"requeued 2 times already, {allowed}"),
    ):
        plant = functools.partial(at, 0, restarts, warn_of_the_time_limit)
        ran = start(tmp_path, TASK | path | {"SLURM_RESTART_COUNT": f"{restarts}"}, plant)
        assert max(filter(None, ran.statuses)) == status, ran.err
        assert (ran.result.status, ran.result.train_steps) == ("interrupted", steps)
        assert (ran.result.failure and ran.result.failure.error) == error
        requeues = [line for line in asked.read_text().splitlines() if "requeue" in line]
        assert requeues == ["requeue 1230_4"]

"""What --after waits for: a job, or what the queue has of a run; nothing is guessed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.after import jobs_to_wait_for
from jobs.cluster import slurm_queue
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import record_submission
from jobs.spec.planning import plan
from tests.jobs.test_run_status import GRID


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run with a job in Slurm, whose squeue says what a test writes."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(slurm_queue, "_WAITS_S", (0.0, 0.0))
    (tmp_path / "bin").mkdir()
    one = plan({"name": "run", "grids": [GRID]})
    paths = create_run_folder(one, tmp_path / "run", Launch(live=True))
    record_submission(paths, "slurm", "gat-seq", [0, 1], "17", Launch())
    return paths


def squeue(folder: Path, body: str) -> None:
    for name, text in (("squeue", body), ("sacct", "exit 0")):
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)


def lists(*jobs: str, run: RunPaths) -> str:
    lines = [
        "\x1f".join((f"{job}_[0-1]", "PENDING", "None", "gat-seq@run", "/x.sh", str(run.root)))
        for job in jobs
    ]
    return "cat <<'END'\n" + "\n".join(lines) + "\nEND"


def test_a_run_stands_for_its_jobs_in_the_queue_and_a_number_for_a_job(
    run: RunPaths, tmp_path: Path
) -> None:
    squeue(tmp_path, lists("17", "23", run=run))
    assert jobs_to_wait_for(["9", "9_3", str(run.root)], "slurm") == ["9", "9_3", "17", "23"]


def test_a_run_without_jobs_is_told(run: RunPaths, tmp_path: Path) -> None:
    squeue(tmp_path, "exit 0")
    told: list[str] = []
    assert jobs_to_wait_for([str(run.root)], "slurm", told.append) == []
    assert told == [f"{run.root} has no job in the queue: nothing to wait for"]


@pytest.fixture
def local_run(run: RunPaths, tmp_path: Path) -> Iterator[tuple[RunPaths, subprocess.Popen[bytes]]]:
    """A run of this machine with the process that runs it; the queue is empty."""
    squeue(tmp_path, "exit 0")
    run.submissions.unlink()
    with subprocess.Popen(["sleep", "60"]) as process:
        record_submission(run, "local", "gat-seq", [0, 1], str(process.pid), Launch())
        yield run, process
        process.kill()


def test_no_job_can_wait_for_a_run_that_still_runs_here(
    local_run: tuple[RunPaths, subprocess.Popen[bytes]],
) -> None:
    run, _ = local_run
    with pytest.raises(InputError) as caught:
        jobs_to_wait_for([str(run.root)], "slurm")
    assert str(caught.value) == (
        f"--after: found {run.root}, which still runs on this machine; "
        "allowed: a run of Slurm, or the id of a job"
    )


def test_a_run_that_has_ended_here_is_told(
    local_run: tuple[RunPaths, subprocess.Popen[bytes]],
) -> None:
    run, process = local_run
    process.kill()
    process.wait()
    told: list[str] = []
    assert jobs_to_wait_for([str(run.root)], "slurm", told.append) == []
    assert told == [f"{run.root} ran on this machine and has ended: nothing to wait for"]


def test_what_slurm_does_not_say_is_not_taken_for_nothing(run: RunPaths, tmp_path: Path) -> None:
    squeue(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(GnnhpcError, match=r"--after .*: Slurm does not say which jobs of .*/run "):
        jobs_to_wait_for([str(run.root)], "slurm")


def test_neither_a_run_nor_a_job(tmp_path: Path) -> None:
    for name in ("nowhere", str(tmp_path), "17x"):
        with pytest.raises(InputError, match=r"--after: found .*; allowed: a run folder, or"):
            jobs_to_wait_for([name], "slurm")

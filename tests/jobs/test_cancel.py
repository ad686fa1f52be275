"""What `cancel` does with jobs that do not hear it at once."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.cancel import cancel
from jobs.cluster import scancel, slurm_queue
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import record_submission
from jobs.spec.planning import plan
from jobs.state.known_runs import known_runs
from jobs.state.run_status import RunStatus, status
from tests.jobs.test_run_status import GRID
from tests.jobs.test_sbatch_retries import calls, program, row

Supervisor = subprocess.Popen[bytes]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run with job 17 in Slurm, looked at without a pause."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scancel, "_WAITS_S", (0.0,))
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "scancel", "")
    one = plan({"name": "run", "grids": [GRID]})
    paths = create_run_folder(one, tmp_path / "run", Launch(live=True))
    record_submission(paths, "slurm", "gat-seq", [0, 1], "17", Launch())
    return paths


@pytest.fixture
def supervisor(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A process that runs other cells of the run on this machine; squeue is asked but once."""
    monkeypatch.setattr(slurm_queue, "_WAITS_S", ())
    with subprocess.Popen(["sleep", "60"]) as process:
        record_submission(run, "local", "gat-pp2", [0, 1], str(process.pid), Launch())
        yield process
        process.kill()


def queued(run: RunPaths, state: str) -> str:
    return row("17", "/spool/copy", str(run.root)).replace("PENDING", state)


def test_what_comes_back_into_the_queue_is_cancelled_again(run: RunPaths, tmp_path: Path) -> None:
    """As a job does whose ranks asked for a requeue just before."""
    others = row("20", "/spool/copy", "/of/another", "gat-seq@another")
    states = ("RUNNING", "COMPLETING", "PENDING")
    bodies = [f"{queued(run, state)}; {others}" for state in states]
    program(tmp_path / "bin", "squeue", bodies[0], *bodies[1:], others)
    assert cancel(run.root) == ["Slurm job 17"]
    assert calls(tmp_path / "bin", "scancel") == ["17", "17"]


def test_a_job_that_goes_on_ending_is_told(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scancel, "PATIENCE_S", 0.0)
    program(tmp_path / "bin", "squeue", queued(run, "RUNNING"), queued(run, "COMPLETING"))
    assert cancel(run.root) == ["Slurm job 17, whose ranks have not ended yet"]
    assert calls(tmp_path / "bin", "scancel") == ["17"]


def test_a_slurm_that_falls_silent_after_it_is_told_of(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_queue, "_WAITS_S", ())
    program(tmp_path / "bin", "squeue", queued(run, "RUNNING"), "exit 1")
    assert cancel(run.root) == ["Slurm job 17, but Slurm does not say whether it has ended"]


def status_in_list(run: Path) -> RunStatus:
    (known,) = [each for each in known_runs(run.parent) if each.run == run]
    assert known.status is not None
    return known.status


@pytest.mark.parametrize("show", [status, status_in_list])
def test_the_queue_is_asked_again_right_after_it(
    show: Callable[[Path], RunStatus], run: RunPaths, tmp_path: Path
) -> None:
    program(tmp_path / "bin", "squeue", *[queued(run, "RUNNING")] * 2, "")
    program(tmp_path / "bin", "sacct", "")
    assert show(run.root).live
    cancel(run.root)
    assert not show(run.root).live


@pytest.mark.parametrize(
    ("squeue", "scancel_", "says"),
    [
        ("echo 'slurm_load_jobs error: nothing answers' >&2; exit 1", "", "Slurm does not say"),
        ("queued", "echo 'scancel: error: Access denied' >&2; exit 1", "Access denied"),
    ],
)
def test_what_slurm_refuses_is_told_before_anything_here_is_stopped(
    squeue: str, scancel_: str, says: str, run: RunPaths, tmp_path: Path, supervisor: Supervisor
) -> None:
    program(tmp_path / "bin", "squeue", squeue.replace("queued", queued(run, "RUNNING")))
    program(tmp_path / "bin", "scancel", scancel_)
    with pytest.raises(GnnhpcError, match=says):
        cancel(run.root)
    assert supervisor.poll() is None


def test_jobs_of_slurm_and_a_supervisor_are_cancelled_together(
    run: RunPaths, tmp_path: Path, supervisor: Supervisor
) -> None:
    program(tmp_path / "bin", "squeue", queued(run, "RUNNING"), "")
    assert cancel(run.root) == ["Slurm job 17", f"local supervisor {supervisor.pid}"]
    assert supervisor.wait() == -signal.SIGTERM

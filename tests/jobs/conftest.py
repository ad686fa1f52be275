"""A Slurm in memory, a small sweep, and runs of it with attempts that no rank has made."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.schema import StepRecord
from jobs.run import cost
from jobs.run.status import status
from jobs.slurm import partitions, squeue_and_sacct
from jobs.slurm.site_settings import Site
from jobs.slurm.squeue_and_sacct import AccountedTask, QueuedJob, SlurmSilentError
from jobs.submit import slurm_scheduler
from jobs.submit.submission import Options
from jobs.submit.submit import Submitted, submit
from jobs.sweep.plan import Plan, plan
from tests.records.test_schema import HEADER, RESULT

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "seeds": [0, 1]}
SILENT = "slurm_load_jobs error: Unable to contact slurm controller"


def small_plan(name: str = "run", **changes: Any) -> Plan:
    """Two cells in each of the arrays gat-seq and gat-pp2."""
    return plan({"name": name, "defaults": {"train_steps": 10}, "grids": [GRID | changes]})


class FakeSlurm:
    """What the modules of jobs ask a Slurm, answered from lists; tests/cluster has a real one."""

    def __init__(self) -> None:
        self.queue: list[QueuedJob] = []
        self.accounts: list[AccountedTask] = []
        self.silent = False
        """Whether squeue gives no answer."""
        self.refusals: list[GnnhpcError | None] = []
        """What the next calls of sbatch raise."""
        self.calls: list[str] = []
        """The options of each call of sbatch."""
        self.cancelled: list[str] = []
        self.partitions: list[partitions.Partition] | None = None
        self._numbers = itertools.count(101)

    def submit_script(self, script: Path, run: Path, own: object, options: Sequence[str]) -> str:
        self.calls.append(" ".join(options))
        if self.refusals and (error := self.refusals.pop(0)):
            raise error
        (tasks,) = re.findall(r"--array=(\S+)", self.calls[-1])
        (name,) = re.findall(r"^#SBATCH --job-name=(\S+)", script.read_text(), re.MULTILINE)
        job = str(next(self._numbers))
        self.queue.append(QueuedJob(job, tasks, "PENDING", "", name, str(script), ""))
        return job

    def set_states(self, state: str, reason: str = "") -> None:
        self.queue = [replace(job, state=state, reason=reason) for job in self.queue]

    def account(self, task: str, state: str, seconds: int = 10) -> None:
        """Let sacct have this task, with two CPUs."""
        self.accounts.append(AccountedTask(task, state, seconds, 2))

    def ask_squeue(self, users: Iterable[str]) -> list[QueuedJob]:
        if self.silent:
            raise SlurmSilentError(SILENT)
        return self.queue

    def ask_sacct(self, jobs: Mapping[str, str | None], **_: object) -> list[AccountedTask]:
        return [one for one in self.accounts if one.task.partition("_")[0] in jobs]

    def cancel_jobs(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs
        self.queue = [job for job in self.queue if job.job_id not in jobs]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm that answers at once."""
    fake, programs = FakeSlurm(), tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun", "squeue"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    # Answers of Slurm are kept there.
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    for module, names in {
        squeue_and_sacct: ("ask_squeue", "ask_sacct"),
        cost: ("ask_sacct",),
        slurm_scheduler: ("submit_script", "cancel_jobs"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(fake, name))
    monkeypatch.setattr(partitions, "query_partitions", lambda: fake.partitions)
    return fake


@pytest.fixture
def submit_small(slurm: FakeSlurm, tmp_path: Path) -> Callable[..., Submitted]:
    """Submits the small sweep to the fake Slurm; `changes` are of its grid."""

    def submitted(name: str = "run", site: Site | None = None, **options: Any) -> Submitted:
        planned = small_plan(name, **options.pop("changes", {}))
        chosen = Options(**{"site": ("test", site or Site()), "live": True} | options)
        return submit(planned, chosen, runs=tmp_path / "runs")

    return submitted


@pytest.fixture
def run(submit_small: Callable[..., Submitted]) -> MadeRun:
    """Four cells in two arrays, jobs 101 and 102, that wait in the fake Slurm."""
    return MadeRun(submit_small().run)


class MadeRun:
    """A run folder whose attempts a test writes."""

    def __init__(self, root: Path) -> None:
        self.root, self.paths = root, RunPaths(root)

    @property
    def cells(self) -> list[Cell]:
        return read_manifest(self.paths.manifest)

    def cell(self, array: str = "gat-seq", index: int = 0) -> Cell:
        return next(cell for cell in self.cells if cell.key == (array, index))

    def begin(
        self, cell: Cell, steps: int = 0, job: str | None = None, **header: Any
    ) -> AttemptPaths:
        """A new attempt whose rank 0 has recorded some steps."""
        attempt = self.paths.cell(cell.id).claim_attempt()
        process = {"host": socket.gethostname(), "pid": os.getpid(), "slurm": slurm_of(job)}
        lines = [asdict(replace(HEADER, cell=cell.id, attempt=attempt.number, **process | header))]
        for step in range(steps):
            record = StepRecord("train", step, 0, False, 0.0, 2.0, 0, 0, 0, 0, 0, 0, 0.5, 10)
            lines.append(asdict(record))
        attempt.records(0).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return attempt

    def finish(self, cell: Cell, job: str | None = None, **changes: Any) -> AttemptPaths:
        """A new attempt with a result."""
        attempt = self.begin(cell, 10, job)
        made: dict[str, Any] = {"cell": cell.id, "attempt": attempt.number}
        made["provenance"] = {"slurm": slurm_of(job)}
        replace(RESULT, **made | changes).write(attempt.result)
        return attempt

    def state(self, array: str = "gat-seq", index: int = 0) -> tuple[str, str | None]:
        """State and detail of a cell, as Slurm says now."""
        cells = status(self.root).cells
        found = next(one for one in cells if (one.array, one.index) == (array, index))
        return found.state, found.detail

    def states(self) -> list[str]:
        return [one.state for one in status(self.root).cells]


def slurm_of(job: str | None) -> dict[str, str]:
    """The variables of the array task 17_3."""
    if job is None:
        return {}
    number, _, task = job.partition("_")
    return {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": number}

"""A fake Slurm, a small sweep, and runs of it with attempts that no rank has made."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Header, StepRecord
from jobs.run.status import status
from jobs.slurm import sbatch
from jobs.slurm.site_settings import Site
from jobs.submit.submission import Options
from jobs.submit.submit import Submitted, submit
from jobs.sweep.plan import Plan, plan
from tests.jobs.fake_slurm import FakeSlurm

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "seeds": [0, 1]}


def small_plan(name: str = "run", **changes: Any) -> Plan:
    """Two cells in each of the arrays gat-seq and gat-pp2."""
    return plan({"name": name, "defaults": {"train_steps": 10}, "grids": [GRID | changes]})


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm of scripts that answers at once."""
    fake = FakeSlurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setattr(sbatch, "LOOK_AFTER_S", 0.0)
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH_"))]:
        monkeypatch.delenv(name)
    # Answers of Slurm are kept there.
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
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
        self.paths = RunPaths(root)

    @property
    def root(self) -> Path:
        return self.paths.root

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
        values: dict[str, Any] = {
            "cell": cell.id, "attempt": attempt.number, "rank": 0, "replica": 0, "stage": 0,
            "world_size": cell.world_size, "host": socket.gethostname(), "pid": os.getpid(),
            "cpu_model": "", "cpus": 1, "threads": 1, "device": "cpu", "layers": [],
            "parameters": 1, "started_at": "2026-01-01T00:00:00+00:00", "slurm": slurm_of(job),
        }  # fmt: skip
        lines = [json.dumps(asdict(Header(**values | header)))]
        for step in range(steps):
            record = StepRecord("train", step, 0, False, 0.0, 2.0, 0, 0, 0, 0, 0, 0, 0.5, 10)
            lines.append(json.dumps(asdict(record)))
        attempt.records(0).write_text("\n".join(lines) + "\n")
        return attempt

    def finish(self, cell: Cell, job: str | None = None, **changes: Any) -> AttemptPaths:
        """A new attempt with a result."""
        attempt = self.begin(cell, 10, job)
        values: dict[str, Any] = {
            "cell": cell.id, "attempt": attempt.number, "status": "done", "experiment": {},
            "layout": {"world_size": 1}, "started_at": "2026-01-01T00:00:00+00:00",
            "ended_at": "2026-01-01T00:01:00+00:00", "train_steps": 10, "test_steps": 1,
            "provenance": {"slurm": slurm_of(job), "threads": 2},
        }  # fmt: skip
        Result(**values | changes).write(attempt.result)
        return attempt

    def state(self, array: str = "gat-seq", index: int = 0) -> tuple[str, str | None]:
        """State and detail of a cell, as Slurm says now."""
        cells = status(self.root).cells
        found = next(one for one in cells if (one.array, one.index) == (array, index))
        return found.state, found.detail

    def states(self) -> dict[str, str]:
        found = status(self.root).cells
        return {f"{one.array}:{one.index}": one.state for one in found}


def slurm_of(job: str | None) -> dict[str, str]:
    """The variables of the array task 17_3."""
    if job is None:
        return {}
    number, _, task = job.partition("_")
    return {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": number}

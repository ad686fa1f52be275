"""Tiny sweeps on the test cluster: submitted, followed and read as a user does it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from tests.cluster.slurm import Cluster

Value = TypeVar("Value")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
LONG_S = 480.0
"""For what ranks must start for and compute, on a machine that may be busy with anything else."""

TINY_VIG: dict[str, Any] = {
    "models": {"name": "vig", "blocks": 4, "grapher_width": 8, "ffn_width": 8, "readout_width": 16},
    "data": {"name": "synthetic-cifar10", "train": 64, "test": 32, "image_size": 4},
    "batch_size": 8,
    "train_steps": 3,
    "test_steps": 2,
}
TINY_GAT: dict[str, Any] = {
    "models": {"name": "gat", "layers": 2, "heads": 2, "hidden": 4},
    "data": {"name": "synthetic-citation", "nodes": 120, "edges": 480, "features": 16},
    "train_steps": 3,
    "test_steps": 2,
}


def wait_for(
    ask: Callable[[], Value], what: str | Callable[[], str], patience_s: float = PATIENCE_S
) -> Value:
    """The first true answer of `ask`; fails the test if none comes.

    `what` says what is waited for; a function is called only where the test fails.
    """
    deadline = time.monotonic() + patience_s
    while not (value := ask()):
        if time.monotonic() > deadline:
            words = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {patience_s:.0f} s for {words}")
        time.sleep(0.1)
    return value


@dataclass(frozen=True)
class User:
    """Somebody at the login node, with a folder for runs and one for notes."""

    cluster: Cluster
    home: Path

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def jobs(
        self,
        *arguments: str | Path,
        check: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m jobs ...`."""
        return self.cluster.run(
            sys.executable,
            "-m",
            "jobs",
            *arguments,
            check=check,
            cwd=cwd or self.home,
            env={"GNNHPC_CACHE": str(self.home / "cache"), "PYTHONPATH": str(ROOT), **(env or {})},
        )

    def submit(
        self,
        grids: list[dict[str, Any]],
        *flags: str | Path,
        name: str,
        site: dict[str, Any] | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Run:
        """Submit a sweep of these grids to Slurm; returns at once."""
        file = self.home / f"{len(list(self.home.glob('*.yaml')))}.yaml"
        file.write_text(yaml.safe_dump({"name": "tiny", "grids": grids}))
        where = ("--runs", self.runs, "--name", name, *self.site(site or {}))
        done = self.jobs("submit", file, *where, *flags, check=check, env=env)
        return Run(self, RunPaths(self.runs / name), done.stdout + done.stderr)

    def site(self, settings: dict[str, Any]) -> tuple[str, ...]:
        """Flags for a site file with these settings over the tests' own."""
        file = self.home / f"site-{len(list(self.home.glob('site-*')))}.yaml"
        settings = {"time": "00:10:00"} | settings
        file.write_text(yaml.safe_dump({"default": "test", "sites": {"test": settings}}))
        return ("--site-file", str(file))


@dataclass(frozen=True)
class Run:
    """A submitted sweep."""

    user: User
    paths: RunPaths
    printed: str = ""
    """What the command that submitted it printed."""

    @property
    def cluster(self) -> Cluster:
        return self.user.cluster

    @property
    def cells(self) -> list[Cell]:
        return read_manifest(self.paths.manifest)

    def cell(self, array: str, index: int = 0) -> Cell:
        return next(cell for cell in self.cells if (cell.array, cell.index) == (array, index))

    def attempt(self, cell: Cell, number: int = 1) -> AttemptPaths:
        return self.paths.cell(cell.id).attempt(number)

    def job(self, array: str) -> str:
        """The newest job id of an array, as the run folder knows it."""
        lines = self.paths.submissions.read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return str([entry for entry in entries if entry["array"] == array][-1]["job_id"])

    def result(self, cell: Cell, number: int = 1) -> Result:
        """Wait for the attempt's result."""
        attempt = self.attempt(cell, number)
        wait_for(attempt.result.exists, lambda: f"{attempt.result}\n{self.explain()}", LONG_S)
        return Result.read(attempt.result)

    def wait_for_step(self, cell: Cell, step: int, number: int = 1, rank: int = 0) -> AttemptPaths:
        """Until the rank has recorded this training step."""
        attempt = self.attempt(cell, number)

        def reached() -> bool:
            return any(line["step"] >= step for line in steps(attempt, rank))

        wait_for(reached, lambda: f"step {step} of {attempt.root}\n{self.explain()}", LONG_S)
        return attempt

    def task(self, cell: Cell) -> str:
        """Slurm's name of the cell's array task."""
        return f"{self.job(cell.array)}_{cell.index}"

    def jobs(self) -> list[str]:
        """Tasks of this run in the queue: `gat-pp2@run 17_3 PENDING`."""
        name = f"@{self.paths.root.name} "
        shown = self.cluster.run("squeue", "-h", "-r", "-a", "-o", "%j %F_%K %T").stdout
        return sorted(line for line in shown.splitlines() if name in line)

    def wait_until_idle(self) -> None:
        """Until Slurm has none of the run's jobs left, requeued ones included."""
        wait_for(lambda: not self.jobs(), lambda: f"an empty queue\n{self.explain()}", LONG_S)

    def wait_for_requeue(self, job: str) -> None:
        def requeued() -> bool:
            shown = self.cluster.run("scontrol", "show", "job", job).stdout
            return "Restarts=0" not in shown and "JobState=PENDING" in shown

        wait_for(requeued, lambda: f"the requeue of job {job}\n{self.explain()}", LONG_S)

    def start_requeued(self, job: str) -> None:
        """Wait for the requeue, and until Slurm has started the job again.

        Slurm holds it back for two minutes, which it calls BeginTime, and again if a node was not
        ready for it; each time this lets it start at once, but not within the second in which its
        first start ended: a node counts in whole seconds, takes the new start for one that was
        revoked with the old, and Slurm lets such a job fail ("Job credential revoked").
        """
        self.wait_for_requeue(job)
        time.sleep(1)
        update = ("scontrol", "update", f"JobId={job}", "StartTime=now")

        def started() -> bool:
            shown = self.cluster.run("scontrol", "show", "job", job).stdout
            if "Reason=BeginTime" in shown:
                self.cluster.run(*update, check=False)
            return "JobState=PENDING" not in shown

        wait_for(started, lambda: f"job {job} to start again\n{self.explain()}", LONG_S)

    def attempts(self) -> list[int]:
        """The number of attempts at each cell."""
        return [len(self.paths.cell(cell.id).attempts()) for cell in self.cells]

    def states(self) -> dict[str, str]:
        """The state of each cell by `array:index`."""
        return {f"{one['array']}:{one['index']}": one["state"] for one in self.status().values()}

    def status(self) -> dict[str, dict[str, Any]]:
        """`python -m jobs status --json`, by cell id."""
        done = self.user.jobs("status", self.paths.root, "--json", check=False)
        assert done.returncode in (0, 1, 3), done.stderr
        return {cell["cell"]: cell for cell in json.loads(done.stdout)["cells"]}

    def accounted_tasks(self) -> int:
        """How many tasks the accounting has of the run's jobs."""
        done = self.user.jobs("status", self.paths.root, "--cost", "--json")
        return int(json.loads(done.stdout)["cost"]["tasks"])

    def explain(self) -> str:
        """What Slurm says of the jobs and what they printed, for the message of a failed test."""
        return self.cluster.run("scontrol", "show", "job").stdout + self.logs()

    def logs(self) -> str:
        """What the jobs printed, for the message of a failed test."""
        files = sorted([*self.paths.logs.glob("*"), *self.paths.cells.glob("*/*/*.log")])
        return "\n".join(f"--- {file.name}\n{_tail(file)}" for file in files)


def planted(kind: str, rank: int | str, step: int) -> dict[str, Any]:
    """Site settings whose interpreter runs into a fault; see plant.py."""
    plant = Path(__file__).parent / "plant.py"
    return {
        "python": f"{shlex.quote(sys.executable)} {shlex.quote(str(plant))}",
        "setup": [f"export GNNHPC_PLANT={kind}:{rank}:{step}"],
    }


def steps(attempt: AttemptPaths, rank: int, phase: str = "train") -> list[dict[str, Any]]:
    """The step records of one rank, as far as they are written."""
    file = attempt.records(rank)
    if not file.exists():
        return []
    lines = read_lines(file)
    return [line for line in lines if line["kind"] == "step" and line["phase"] == phase]


def losses(attempt: AttemptPaths, world_size: int) -> dict[int, float]:
    """Training step -> loss, from whichever rank has it."""
    return {
        line["step"]: line["loss"]
        for rank in range(world_size)
        for line in steps(attempt, rank)
        if line["loss"] is not None
    }


def _tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-20:])

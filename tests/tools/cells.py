"""Tiny cells of both models that take milliseconds a step, and what a run of one left behind."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.core.layout import Layout
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, assign_indices, write_manifest
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from tests.tools.forked import Plant, started

STEPS = {"train_steps": 6, "test_steps": 2, "test_every": 3, "warmup_steps": 2}
VIG: dict[str, Any] = {
    "model": {"name": "vig", "blocks": 2, "grapher_width": 8, "ffn_width": 16, "readout_width": 16},
    "data": {"name": "synthetic-cifar10", "image_size": 8, "train": 64, "test": 32},
    "batch_size": 8,
    "microbatches": 4,
    **STEPS,
}
GAT: dict[str, Any] = {
    "model": {"name": "gat"},
    "data": {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32},
    "microbatches": 4,
    **STEPS,
}
SAMPLED: dict[str, Any] = {
    "model": {"name": "sage", "layers": 2},
    "data": {"name": "synthetic-citation", "nodes": 150, "edges": 1_500, "features": 32},
    "sampling": {"fanouts": [4, 3]},
    "batch_size": 24,
    **STEPS,
}
GRAPHS: dict[str, Any] = {
    "model": {"name": "gin", "hidden": 16},
    "data": {"name": "synthetic-graphs", "graphs": 80, "nodes": 8},
    "batch_size": 24,
    **STEPS,
}
GRAPH_MODELS: list[dict[str, Any]] = [
    {"name": "gat"},
    {"name": "gatv2"},
    {"name": "gcn"},
    {"name": "sage", "aggregator": "mean"},
    {"name": "sage", "aggregator": "max"},
    {"name": "sage", "aggregator": "pool"},
    {"name": "gin"},
    {"name": "graphconv"},
    {"name": "resgcn", "layers": 3},
    {"name": "gcnii", "layers": 3},
]
"""Every model of graphs and every aggregator."""
LINKED: dict[str, Any] = {**SAMPLED, "task": {"name": "links", "embedding": 8, "hits": 3}}


def _maker(settings: dict[str, Any]) -> Callable[..., Experiment]:
    return lambda **changes: Experiment.model_validate(settings | changes)


vig, gat, sampled, graphs, linked = map(_maker, (VIG, GAT, SAMPLED, GRAPHS, LINKED))
"""Each makes an experiment of these settings with some changes."""


def in_one_process(experiment: Experiment, **changes: Any) -> Experiment:
    """The same mini-batches and micro-batches."""
    replicas, size = experiment.layout.replicas, experiment.batch_size
    changes |= {"layout": Layout(), "microbatches": experiment.microbatches * replicas}
    return experiment.model_copy(update=changes | {"batch_size": size and size * replicas})


@dataclass(frozen=True)
class Ran:
    """One attempt at a cell, as its files tell it."""

    cell: Cell
    statuses: list[int | None]
    attempt: AttemptPaths
    out: list[str]
    err: list[str]

    @property
    def result(self) -> Result:
        return Result.read(self.attempt.result)

    def lines(self, rank: int, kind: str) -> list[dict[str, Any]]:
        found = read_lines(self.attempt.records(rank))
        return [line for line in found if line["kind"] == kind]

    def steps(self, rank: int, phase: str) -> list[dict[str, Any]]:
        return [line for line in self.lines(rank, "step") if line["phase"] == phase]

    def losses(self, phase: str = "train") -> list[float]:
        """Of the last stage of the first replica, which every last stage reports."""
        last = self.cell.experiment.loss_stage
        return [step["loss"] for step in self.steps(last, phase)]


@dataclass(frozen=True)
class RunOnce:
    """Runs an experiment as a cell once a session, whichever tests and xdist workers ask for it."""

    root: Path

    def __call__(self, experiment: Experiment) -> Ran:
        (ran,) = self.attempts("whole", experiment, [None])
        return ran

    def attempts(
        self, name: str, experiment: Experiment, plants: Sequence[Plant | None]
    ) -> list[Ran]:
        """An attempt with each of the plants, one after the other; `name` is theirs together."""
        folder = self.root / name / experiment.id
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "ran.pickle"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                (cell,) = manifest_of(folder, experiment)
                made = [run(folder, cell, plant=plant) for plant in plants]
                kept.write_bytes(pickle.dumps(made))
        found: list[Ran] = pickle.loads(kept.read_bytes())
        return found


def manifest_of(root: Path, *experiments: Experiment) -> list[Cell]:
    """Make a run folder's manifest."""
    root.mkdir(parents=True, exist_ok=True)
    cells = assign_indices(experiments)
    write_manifest(RunPaths(root).manifest, cells)
    return cells


def run(
    root: Path,
    cell: Cell,
    *,
    env: dict[str, str] | None = None,
    plant: Plant | None = None,
    ranks: int | None = None,
) -> Ran:
    """Run a cell of a manifest on its real ranks, to whatever end."""
    arguments = ["run", "--manifest", RunPaths(root).manifest, "--array", cell.array]
    arguments += ["--index", cell.index]
    size = ranks or cell.experiment.process_layout.world_size
    with started(arguments, size, root / "printed", env=env, plant=plant) as running:
        statuses = running.wait()
        attempts = RunPaths(root).cell(cell.id).attempts()
        return Ran(
            cell,
            statuses,
            attempts[-1] if attempts else RunPaths(root).cell(cell.id).attempt(1),
            [running.out(rank) for rank in range(size)],
            [running.err(rank) for rank in range(size)],
        )

"""Real ranks of one cell on this machine, by `python -m gnnhpc run`, and what they recorded."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.isolated import ROOT, TIMEOUT_S, BenchmarkError
from gnnhpc.core.schedule import ideal_step_s, place_of_part
from gnnhpc.experiment.cli_experiment import build_experiment
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Result, read_lines

_OTHERS = ("SLURM_", "SUBMITIT_", "TORCHELASTIC_")
WARMUP = 2


@dataclass(frozen=True)
class Measured:
    """A finished run: what each rank recorded, and when its first step began."""

    experiment: Experiment
    result: Result
    ranks: list[list[dict[str, Any]]]
    first_step_s: float
    """From starting the first process to the beginning of rank 0's first step."""

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """The training steps of one rank that are no warm-up."""
        return [
            record
            for record in self.ranks[rank]
            if record["kind"] == "step" and record["phase"] == "train" and not record["warmup"]
        ]

    @property
    def walls(self) -> list[float]:
        """Seconds of each step, the slowest rank's."""
        steps = [self.steps(rank) for rank in range(len(self.ranks))]
        return [max(s["wall_s"] for s in ranks) for ranks in zip(*steps, strict=True)]

    @property
    def ideals(self) -> list[float]:
        """Seconds of the same schedule with each step's own forward and backward, all else free."""
        experiment = self.experiment
        layout = experiment.process_layout
        pipelines = [layout.pipeline_ranks(replica) for replica in range(layout.replicas)]
        steps = [self.steps(rank) for rank in range(layout.world_size)]
        return [
            max(_ideal_s(experiment, [ranks[rank] for rank in pipeline]) for pipeline in pipelines)
            for ranks in zip(*steps, strict=True)
        ]

    @property
    def step_s(self) -> float:
        return median(self.walls)

    def peak_mib(self, rank: int) -> float:
        return max(float(step["peak_rss_mib"]) for step in self.steps(rank))


def _ideal_s(experiment: Experiment, stages: Sequence[dict[str, Any]]) -> float:
    """Of one step's records, a stage's after the other's."""
    count, parts = experiment.microbatches, experiment.virtual_stages
    passes = list(_passes(experiment, stages))
    forward, backward, weights = ([of[way] / count for of in passes] for way in range(3))
    return ideal_step_s(
        *(experiment.schedule, forward, backward, count), weights_s=weights, parts=parts
    )


def _passes(
    experiment: Experiment, stages: Sequence[dict[str, Any]]
) -> Iterator[tuple[float, float, float]]:
    """Seconds of forwards, backwards and weights apart of each part of the model, in order."""
    for number in range(experiment.model_parts):
        stage, part = place_of_part(experiment.schedule, number, len(stages))
        step = stages[stage]
        told = step.get("part_s")
        names = ("forward_s", "backward_s", "weights_s")
        forward, backward, *weights = told[part] if told else [step.get(name) for name in names]
        later = weights[0] if experiment.split_backward else 0.0
        yield forward, backward - later, later


@dataclass
class Running:
    """Ranks under way; `finish` waits for them, and none is left behind."""

    experiment: Experiment
    attempt: AttemptPaths
    processes: list[subprocess.Popen[bytes]]
    began: float
    _first_step_s: float | None = None

    def finish(self) -> Measured:
        """Raises BenchmarkError if a rank fails or time runs out."""
        try:
            while any(process.poll() is None for process in self.processes):
                self._look()
                if time.perf_counter() - self.began > TIMEOUT_S:
                    raise BenchmarkError(f"{self.experiment.id}: not done in {TIMEOUT_S:.0f} s")
                time.sleep(0.01 if self._first_step_s is None else 0.1)
        finally:
            self.end()
        self._look()
        if not self.attempt.result.exists():
            raise BenchmarkError(f"{self.experiment.id}: no rank left a result")
        result = Result.read(self.attempt.result)
        if result.status != "done" or self._first_step_s is None:
            why = result.failure.error if result.failure else result.status
            raise BenchmarkError(f"{self.experiment.id}: {why}")
        world_size = self.experiment.process_layout.world_size
        ranks = [read_lines(self.attempt.records(rank)) for rank in range(world_size)]
        return Measured(self.experiment, result, ranks, self._first_step_s)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _look(self) -> None:
        """Seen from outside, so that nothing before the first step can be left out."""
        if self._first_step_s is not None or not self.attempt.records(0).exists():
            return
        seen = time.perf_counter() - self.began
        steps = [r for r in read_lines(self.attempt.records(0)) if r.get("kind") == "step"]
        if steps:
            self._first_step_s = seen - steps[0]["wall_s"]


@dataclass
class Launcher:
    """Starts cells, each in a run folder of its own below `folder`."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, layout: str, microbatches: int, **changes: Any) -> Measured:
        return self.start(layout, microbatches, **changes).finish()

    def start(
        self, layout: str, microbatches: int, *, cpus: int | None = None, **changes: Any
    ) -> Running:
        """Start the ranks of a ViG cell; `changes` are fields of the experiment.

        `cpus` confines them to so many CPUs.
        """
        raw: dict[str, Any] = {
            "model": {"name": "vig"},
            "data": {"name": "synthetic-cifar10"},
            "layout": layout,
            "microbatches": microbatches,
            "batch_size": 100,
            "test_steps": 1,
            "warmup_steps": WARMUP,
            **changes,
        }
        experiment = build_experiment(raw, "benchmark")
        out = self.folder / f"run-{next(self._numbers)}"
        out.mkdir(parents=True)
        file = out / "cell.jsonl"
        file.write_text(Cell(array_name(experiment), 0, experiment).to_line() + "\n", "utf-8")
        command = [sys.executable, "-m", "gnnhpc", "run", "--cell", str(file), "--out", str(out)]
        size = experiment.process_layout.world_size
        port = _free_port()
        began = time.perf_counter()
        with _confined(cpus), (out / "launch.log").open("wb") as log:
            processes = [
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=_environment(rank, size, port),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for rank in range(size)
            ]
        attempt = RunPaths(out).cell(experiment.id).attempt(1)
        return Running(experiment, attempt, processes, began)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Torchrun's variables, and one thread."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return own | {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GNNHPC_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _confined(cpus: int | None) -> Iterator[None]:
    """What is started inside may use only `cpus` CPUs: affinity is inherited."""
    allowed = os.sched_getaffinity(0)
    if cpus is not None:
        os.sched_setaffinity(0, sorted(allowed)[:cpus])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)

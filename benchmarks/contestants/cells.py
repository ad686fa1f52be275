"""Runs of whole cells: real ranks of this machine by `python -m gnnhpc run`, and their records."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.turns import ROOT, TIMEOUT_S, BenchmarkError
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.core.schedules import ideal_step_s, place_of_virtual_stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines

WARMUP = 2
Step = dict[str, Any]


def cell(
    steps: int,
    cpus: int | None = None,
    copies: int = 1,
    environment: dict[str, str] | None = None,
    analysed: bool = False,
    **settings: Any,
) -> Callable[[], dict[str, float]]:
    """A function that runs a cell of so many measured steps, and returns medians over its steps.

    `seconds` is a step of the slowest rank; `ideal_s` is the same step if the schedule cost nothing
    but its stages' own seconds; `allreduce_s`, `data_s` (a step with the wait for its data),
    `first_step_s` (from the start of the first process to the first step), `startup_s` (as the run
    records it), `peak_mib_<rank>`, and if `analysed` `measured_steps` and those `averaged_steps`.

    `cpus` confines the ranks to so many CPUs; `copies` runs as many cells at the same time, each
    with a seed of its own, and reports the slowest.
    """
    settings = {"warmup_steps": WARMUP, "train_steps": WARMUP + steps, "test_steps": 1} | settings
    if cpus is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])

    def turn() -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="gnnhpc-cell-") as folder:
            runs = [
                _Run(
                    build_experiment(settings | {"seed": seed}, "benchmark"),
                    Path(folder, str(seed)),
                )
                for seed in range(copies)
            ]
            for run in runs:
                run.start(environment or {})
            try:
                measured = [run.finish() | (run.averaged() if analysed else {}) for run in runs]
            finally:
                for run in runs:
                    run.end()
        return max(measured, key=lambda each: each["seconds"])

    return turn


class _Run:
    """The ranks of one cell."""

    def __init__(self, experiment: Experiment, out: Path) -> None:
        self.experiment, self.out = experiment, out
        self.attempt: AttemptPaths = RunPaths(out).cell(experiment.id).attempt(1)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, environment: dict[str, str]) -> None:
        self.out.mkdir(parents=True)
        file = RunPaths(self.out).manifest
        line = Cell.of(array_name(self.experiment), 0, self.experiment).to_line()
        file.write_text(line + "\n", "utf-8")
        command = [sys.executable, "-m", "gnnhpc", "run", "--cell", str(file)]
        size, port = self.experiment.process_layout.world_size, _free_port()
        self.began = time.perf_counter()
        with (self.out / "launch.log").open("wb") as log:
            self.processes = [
                subprocess.Popen(
                    [*command, "--out", str(self.out)],
                    cwd=ROOT,
                    env=_environment(rank, size, port) | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for rank in range(size)
            ]

    def finish(self) -> dict[str, float]:
        """Raises BenchmarkError if a rank fails, the audit calls the run invalid or time is up."""
        first_step_s = None
        while any(process.poll() is None for process in self.processes):
            if first_step_s is None and (done := self._steps(0, warm=False)):
                first_step_s = time.perf_counter() - self.began - float(done[0]["wall_s"])
            if time.perf_counter() - self.began > TIMEOUT_S:
                raise BenchmarkError(f"{self.experiment.id}: not done in {TIMEOUT_S:g} s")
            time.sleep(0.01 if first_step_s is None else 0.1)
        if not self.attempt.result.exists():
            last = (self.out / "launch.log").read_text("utf-8", "replace").strip().split("\n")[-1]
            raise BenchmarkError(f"{self.experiment.id}: no result; {last}")
        result = Result.read(self.attempt.result)
        wrong = [check.detail for check in result.audit if check.verdict == "invalid"]
        if result.status != "done" or wrong:
            why = result.failure.error if result.failure else (wrong or [result.status])[0]
            raise BenchmarkError(f"{self.experiment.id}: {why}")
        ranks = [self._steps(rank) for rank in range(len(self.processes))]
        steps = list(zip(*ranks, strict=True))
        walls = [max(float(step["wall_s"]) for step in each) for each in steps]
        peaks = {
            f"peak_mib_{rank}": max(float(s["peak_rss_mib"]) for s in mine)
            for rank, mine in enumerate(ranks)
        }
        return peaks | {
            "seconds": median(walls),
            "ideal_s": median(map(self._ideal_s, steps)),
            "allreduce_s": median(
                max(step["allreduce_s"] or 0.0 for step in each) for each in steps
            ),
            "data_s": median(step["wall_s"] + step["data_s"] for step in ranks[0]),
            "first_step_s": first_step_s or 0.0,
            "startup_s": float(result.provenance["startup_s"]["total"]),
        }

    def averaged(self) -> dict[str, float]:
        """Measured steps beside the profiled ones, and how many of them an analysis averages."""
        from analysis.load.run_data import load_run

        phases = load_run(self.out).phases
        measured = self.experiment.train_steps - self.experiment.warmup_steps
        return {
            "measured_steps": measured - min(self.experiment.profile_steps, measured // 4),
            "averaged_steps": float(phases.loc[phases["phase"] == "train", "n"].iloc[0]),
        }

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _steps(self, rank: int, *, warm: bool = True) -> list[Step]:
        """The training steps of a rank; if `warm`, only those that count in averages."""
        path = self.attempt.records(rank)
        if not path.exists():
            return []
        records = (record for record in read_lines(path) if record["kind"] == "step")
        return [
            r
            for r in records
            if r["phase"] == "train" and not (warm and (r["warmup"] or r["profiled"]))
        ]

    def _ideal_s(self, ranks: Sequence[Step]) -> float:
        """Seconds of the schedule with a step's own forwards and backwards, and no other cost."""
        layout = self.experiment.process_layout
        pipelines = [layout.pipeline_ranks(replica) for replica in range(layout.replicas)]
        return max(ideal_s(self.experiment, [ranks[rank] for rank in each]) for each in pipelines)


def ideal_s(experiment: Experiment, stages: Sequence[Step]) -> float:
    """Seconds of the schedule with the records of one step, one for each stage of a pipeline."""
    count = experiment.microbatches
    passes = list(_passes(experiment, stages))
    forward, backward, weights = ([of[way] / count for of in passes] for way in range(3))
    return ideal_step_s(
        *(experiment.schedule, forward, backward, count),
        weights_s=weights,
        virtual_stages=experiment.virtual_stages,
    )


def _passes(experiment: Experiment, stages: Sequence[Step]) -> Iterator[tuple[float, float, float]]:
    """Seconds of forwards, backwards and separate weights of each virtual stage, in order."""
    for number in range(experiment.total_virtual_stages):
        stage, place = place_of_virtual_stage(experiment.schedule, number, len(stages))
        step = stages[stage]
        names = ("forward_s", "backward_s", "weights_s")
        recorded = step.get("virtual_stage_s")
        seconds = recorded[place] if recorded else [step.get(name) or 0.0 for name in names]
        weights = seconds[2] if experiment.split_backward else 0.0
        yield seconds[0], seconds[1] - weights, weights


def command(
    command: str, prepare: str | None = None, sweep: dict[str, Any] | None = None
) -> Callable[[], dict[str, float]]:
    """Seconds and the most MiB of `python -m COMMAND`, after one that prepares its folder.

    Both may name `{folder}`; the sweep is in `{folder}/sweep.yaml`.
    """
    folder = tempfile.mkdtemp(prefix="gnnhpc-command-")
    atexit.register(shutil.rmtree, folder)

    def call(text: str) -> list[str]:
        return [sys.executable, "-m", *text.format(folder=folder).split()]

    if sweep is not None:
        Path(folder, "sweep.yaml").write_text(json.dumps(sweep), "utf-8")
    if prepare is not None:
        subprocess.run(call(prepare), cwd=ROOT, check=True, capture_output=True)

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        child = subprocess.Popen(call(command), cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise BenchmarkError(f"{command}: status {child.returncode}")
        return {"seconds": time.perf_counter() - began, "peak_mib": usage.ru_maxrss / 1024.0}

    return turn


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables of torchrun, and one thread."""
    others = ("SLURM_", "SUBMITIT_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    names = itertools.product(("", "LOCAL_"), (("RANK", rank), ("WORLD_SIZE", size)))
    ranks = {f"{local}{name}": str(value) for local, (name, value) in names}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return kept | ranks | master | {"GNNHPC_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

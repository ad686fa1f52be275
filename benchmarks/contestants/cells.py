"""Runs of whole cells under torchrun on this machine, and of the suite's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.load.run_data import load_run
from analysis.summary.cell_measures import cell_phase_frame
from benchmarks.turns import ROOT, BenchmarkError, Taken
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.command_line_flags import build_experiment
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.records.result_file import Result

WARMUP = 2


def cell(
    steps: int,
    cpus: int | None = None,
    copies: int = 1,
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> Callable[[], Taken]:
    """A function that runs a cell of so many measured steps, and returns what `analysis` finds.

    `seconds` is the median step of the slowest rank, `ideal_s` the same step if the schedule cost
    nothing but its stages' own seconds. The others are `allreduce_s`, `data_s` (a step with the
    wait for its data), `startup_s`, `peak_mib_<rank>`, and the `measured_steps` beside the profiled
    ones, with the `averaged_steps` among them.

    `cpus` confines the ranks to so many CPUs; `copies` runs as many cells at the same time, each
    with a seed of its own, and reports the slowest.
    """
    settings = {"warmup_steps": WARMUP, "train_steps": WARMUP + steps, "test_steps": 1} | settings
    experiments = [build_experiment(settings | {"seed": n}, "benchmark") for n in range(copies)]
    if cpus is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    variables = os.environ | {"GNNHPC_THREADS": "1", "OMP_NUM_THREADS": "1"} | (environment or {})

    def turn() -> Taken:
        with tempfile.TemporaryDirectory(prefix="gnnhpc-cell-") as folder:
            outs = [Path(folder, str(each.seed)) for each in experiments]
            runs = [
                _start(each, out, variables) for each, out in zip(experiments, outs, strict=True)
            ]
            try:
                for run in runs:
                    run.wait()
            finally:
                for run in runs:
                    run.terminate()
            return max(map(_measured, outs), key=lambda each: each["seconds"])

    return turn


def write_cell(experiment: Experiment, out: Path) -> Path:
    """Make a folder with a manifest of this cell alone; returns the manifest's path."""
    out.mkdir()
    manifest = RunPaths(out).manifest
    manifest.write_text(Cell.of(array_name(experiment), 0, experiment).to_line() + "\n", "utf-8")
    return manifest


def _start(experiment: Experiment, out: Path, environment: dict[str, str]) -> Any:
    ranks = experiment.process_layout.world_size
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    run = ["-m", "gnnhpc", "run", "--cell", str(write_cell(experiment, out)), "--out", str(out)]
    with (out / "launch.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *launcher, *run],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )


def _measured(out: Path) -> Taken:
    """Raises BenchmarkError where the cell failed or is not valid."""
    run = load_run(out)
    (one,) = run.cells.to_dict("records")
    if not one["valid"]:
        why = [*run.checks["detail"], (out / "launch.log").read_text("utf-8", "replace")[-300:]]
        raise BenchmarkError(f"{one['cell']}: {one['status']}: {' '.join(why[0].split())}")
    (frame,) = cell_phase_frame(run).query("phase == 'train'").to_dict("records")
    trained = run.steps[run.steps["phase"] == "train"]
    steps = trained[trained["kept"]]
    of_first = run.ranks[run.ranks["rank"] == 0].merge(steps[["phase", "step"]])
    peaks = run.ranks.groupby("rank")["peak_rss_mib"].max()
    attempt = RunPaths(out).cell(str(one["cell"])).attempt(1)
    return {f"peak_mib_{rank}": float(peak) for rank, peak in peaks.items()} | {
        "seconds": float(steps["wall_s"].median()),
        "ideal_s": float(frame["ideal_step_s"]),
        "allreduce_s": float(steps["allreduce_s"].median()),
        "data_s": float((of_first["wall_s"] + of_first["data_s"]).median()),
        "startup_s": float(Result.read(attempt.result).provenance["startup_s"]["total"]),
        "measured_steps": float((~trained["warmup"] & ~trained["profiled"]).sum()),
        "averaged_steps": float(len(steps)),
    }


def command(
    command: str, prepare: str | None = None, sweep: dict[str, Any] | None = None
) -> Callable[[], Taken]:
    """Seconds and the most MiB of `python -m COMMAND`, after one that prepares its folder.

    Both may name `{folder}`; the sweep is in `{folder}/sweep.yaml`.
    """
    folder = tempfile.TemporaryDirectory(prefix="gnnhpc-command-")

    def call(text: str) -> list[str]:
        return [sys.executable, "-m", *text.format(folder=folder.name).split()]

    Path(folder.name, "sweep.yaml").write_text(json.dumps(sweep), "utf-8")
    if prepare is not None:
        subprocess.run(call(prepare), cwd=ROOT, check=True, capture_output=True)

    def turn() -> Taken:
        began = time.perf_counter()
        child = subprocess.Popen(call(command), cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise BenchmarkError(f"{command}: status {child.returncode}")
        return {"seconds": time.perf_counter() - began, "peak_mib": usage.ru_maxrss / 1024.0}

    return turn

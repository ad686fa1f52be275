"""What recording costs: a step of a real run, and a bare loop of the same layers.

The run is `gnnhpc run` with its records, listeners and validation, in a process that stops after
every few steps until its next turn; its time is what it records of itself, `wall_s`. The bare loop
is forward, loss, backward and optimizer with a clock around them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.turns import ROOT, BenchmarkError

STEPS = 10
"""Steps of a turn, of which the median counts: the first finds its threads asleep."""


def recorded(settings: dict[str, Any], turns: int) -> Callable[[], dict[str, float]]:
    """Turns of a run, which averages `turns * STEPS` steps after its warm-up and profiled steps."""
    settings = {"warmup_steps": 2, "train_steps": 5 + turns * STEPS, "test_steps": 1} | settings
    run = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recording", json.dumps(settings)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def turn() -> dict[str, float]:
        assert run.stdin is not None
        assert run.stdout is not None
        print(file=run.stdin, flush=True)
        line = run.stdout.readline()
        if not line:
            raise BenchmarkError(f"the run ended with status {run.wait()}")
        measured: dict[str, float] = json.loads(line)
        return measured

    return turn


def bare(settings: dict[str, Any]) -> Callable[[], float]:
    """Turns of a loop over the same layers, with the optimizer of the run."""
    from benchmarks.our_steps import built, opened
    from gnnhpc.engines.engine import first_input

    parts = built(settings)
    stage, optimizer, loss = parts.stage, parts.optimizer, parts.loss
    gradients = parts.engine.gradients
    batches = opened(parts)
    assert optimizer is not None

    def step() -> float:
        batch = next(batches)
        began = time.perf_counter()
        gradients.zero()
        for each in batch.microbatches:
            loss(stage(first_input(each), each.context), each, batch.labelled).backward()
        stage.end_minibatch()
        optimizer.step()
        return time.perf_counter() - began

    return lambda: median(step() for _ in range(STEPS))


def main() -> None:
    """Run the cell; after `STEPS` measured steps answer, and wait for the next line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", type=json.loads, help="fields of an experiment, as JSON")
    settings = parser.parse_args().settings
    from gnnhpc import cli
    from gnnhpc.experiment.flags import build_experiment
    from gnnhpc.experiment.manifest import Cell, array_name
    from gnnhpc.records.record_writer import RecordWriter
    from gnnhpc.records.schema import StepRecord

    answers, sys.stdout = sys.stdout, sys.stderr
    walls: list[float] = []
    write = RecordWriter.write

    def paused(self: RecordWriter, *records: Any) -> None:
        write(self, *records)
        for record in records:
            if not isinstance(record, StepRecord) or record.phase != "train":
                continue
            if record.warmup or record.profiled:
                continue
            walls.append(record.wall_s)
            if len(walls) == STEPS:
                print(json.dumps({"seconds": median(walls)}), file=answers, flush=True)
                walls.clear()
                if not sys.stdin.readline():
                    sys.exit("the benchmark has ended")

    experiment = build_experiment(settings, "benchmark")
    with tempfile.TemporaryDirectory(prefix="gnnhpc-recording-") as folder:
        cell = Path(folder, "cell.jsonl")
        cell.write_text(Cell.of(array_name(experiment), 0, experiment).to_line() + "\n", "utf-8")
        sys.stdin.readline()
        with mock.patch.object(RecordWriter, "write", paused):
            sys.exit(cli.run(cell=cell, out=Path(folder, "run")))


if __name__ == "__main__":
    main()

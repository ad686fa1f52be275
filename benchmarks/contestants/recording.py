"""What recording costs: a step of a real run, and a bare loop of the same layers.

The run is `gnnhpc run` with its records, listeners and validation. After every few steps it stops
until its next turn, and then the bare loop takes as many steps with the very layers, optimizer and
mini-batch of the run: forward, loss, backward and optimizer with a clock around them. In processes
of their own the two would differ by up to 4 % in either direction, by where each finds its memory.
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
from typing import Any, TextIO
from unittest import mock

from benchmarks.turns import ROOT, BenchmarkError
from gnnhpc import cli
from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import first_input
from gnnhpc.engines.step_timer import StepTimes
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.machine_readings import MachineReadings
from gnnhpc.training.setup import TrainingParts
from gnnhpc.training.step_record import gather_metrics

STEPS = 10
"""Steps of each in a turn, of which the median counts: the first finds its threads asleep."""


def run(settings: dict[str, Any], turns: int) -> Callable[[], dict[str, float]]:
    """Turns of a run of `turns * STEPS` steps after its warm-up and profiled steps: the `seconds`
    of a step as it records them, those of a `bare` one, and those of a bare one with a pause before
    it (`after_pause`)."""
    settings = {"warmup_steps": 2, "train_steps": 5 + turns * STEPS, "test_steps": 0} | settings
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.contestants.recording", json.dumps(settings)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def turn() -> dict[str, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise BenchmarkError(f"the run ended with status {process.wait()}")
        measured: dict[str, float] = json.loads(line)
        return measured

    return turn


def bare_step(parts: TrainingParts, batch: Batch) -> float:
    """Seconds of one training step without anything around it."""
    began = time.perf_counter()
    parts.engine.gradients.zero()
    for each in batch.microbatches:
        output = parts.stage(first_input(each), each.context)
        parts.loss(output, each, batch.valid_targets).backward()
    parts.stage.end_minibatch()
    if parts.optimizer is not None:
        parts.optimizer.step()
    return time.perf_counter() - began


class BareSteps(Listener):
    """After every `STEPS` measured steps it takes as many bare ones, answers, and waits."""

    def __init__(self, loop: TrainingLoop, answers: TextIO) -> None:
        self._loop, self._parts, self._answers = loop, loop.parts, answers
        self._recorded: list[float] = []

    def step_taken(self, taken: StepTaken) -> None:
        record = taken.record
        if record.phase != "train" or record.warmup or record.profiled:
            return
        self._recorded.append(record.wall_s)
        if len(self._recorded) < STEPS:
            return
        bare = median(bare_step(self._parts, taken.batch) for _ in range(STEPS))
        after_pause = median(self._step_and_pause(taken) for _ in range(STEPS))
        measured = {"seconds": median(self._recorded), "bare": bare, "after_pause": after_pause}
        self._recorded.clear()
        print(json.dumps(measured), file=self._answers, flush=True)
        _wait_for_turn()

    def _step_and_pause(self, taken: StepTaken) -> float:
        """Seconds of a bare step, without those of the pause that follows it.

        The pause reads, computes and formats what a run records of a step. It finds the step's
        data in the caches, and leaves its own there.
        """
        seconds = bare_step(self._parts, taken.batch)
        MachineReadings.now().since(MachineReadings.now())
        self._parts.engine.gradients.norm()
        times = StepTimes(seconds, None)
        gather_metrics(
            *(self._loop.mesh, self._parts.task, "train", taken.batch, taken.output, times, False)
        )
        json.dumps(vars(taken.record))
        return seconds


def _wait_for_turn() -> None:
    if not sys.stdin.readline():
        sys.exit("the benchmark has ended")


def main() -> None:
    """Run the cell of the command line with bare steps between its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", type=json.loads, help="fields of an experiment, as JSON")
    experiment = build_experiment(parser.parse_args().settings, "benchmark")
    answers, sys.stdout = sys.stdout, sys.stderr
    train = TrainingLoop.run

    def train_with_bare_steps(loop: TrainingLoop, start: int = 0) -> None:
        loop.listeners = [*loop.listeners, BareSteps(loop, answers)]
        train(loop, start)

    with tempfile.TemporaryDirectory(prefix="gnnhpc-recording-") as folder:
        cell = Path(folder, "cell.jsonl")
        cell.write_text(Cell.of(array_name(experiment), 0, experiment).to_line() + "\n", "utf-8")
        _wait_for_turn()
        with mock.patch.object(TrainingLoop, "run", train_with_bare_steps):
            sys.exit(cli.run(cell=cell, out=Path(folder, "run")))


if __name__ == "__main__":
    main()

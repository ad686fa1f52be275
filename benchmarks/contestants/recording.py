"""What recording costs: a step of a real run, and a bare loop of the same layers.

The run is `gnnhpc run` with its records, listeners and validation. Around every few steps of it a
bare loop takes as many with the very layers, optimizer and mini-batch of the run: forward, loss,
backward and optimizer with a clock around them. In processes of their own the two would differ by
up to 4 % in either direction, by where each finds its memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, TextIO
from unittest import mock

from benchmarks.turns import ROOT, BenchmarkError
from gnnhpc import cli
from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import first_input
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.experiment.manifest import Cell, array_name
from gnnhpc.records.schema import StepRecord
from gnnhpc.training.events import Listener, StepTaken
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.setup import TrainingParts

LATER = 1_000_000
"""Bare steps have numbers that no step of the run has."""
STEPS = 10
"""Steps of each in a turn, of which the median counts: the first finds its threads asleep."""


def run(settings: dict[str, Any], turns: int) -> Callable[[], dict[str, float]]:
    """A function that takes one turn of a run, after its first steps. A turn returns the `seconds`
    of a recorded step, those of a `bare` one, and those of a `paused` one: a bare one that follows
    a pause as long as that between two recorded ones."""
    settings = {
        "warmup_steps": 2,
        "train_steps": 5 + (turns + 1) * STEPS,
        "test_steps": 0,
    } | settings
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
    """Seconds of one training step without anything around it; on a GPU of a replayed one."""
    began = time.perf_counter()
    parts.engine.gradients.zero()
    if parts.timer.on_device:
        parts.engine.train_step(batch)
    else:
        for each in batch.microbatches:
            output = parts.stage(first_input(each), each.context)
            parts.plan.loss(output, each, batch.valid_targets).backward()
        parts.stage.end_minibatch()
    if parts.optimizer is not None:
        parts.optimizer.step()
    parts.timer.synchronize()
    return time.perf_counter() - began


class BareSteps(Listener):
    """Takes bare steps before and after every `STEPS` measured ones, answers, and waits.

    After a wait a processor takes some steps to come back to its speed, so those of both kinds lie
    around each other, after steps that do not count.
    """

    def __init__(self, parts: TrainingParts, answers: TextIO) -> None:
        self._parts, self._answers = parts, answers
        self._recorded: list[StepRecord] = []
        self._before: tuple[float, float] | None = None
        """Seconds of the bare and the paused steps before the present measured ones."""
        self._bare_steps = 0

    def step_taken(self, taken: StepTaken) -> None:
        record = taken.record
        if record.phase != "train" or record.warmup or record.profiled:
            return
        self._recorded.append(record)
        if len(self._recorded) < STEPS:
            return
        pause_s = median(
            later.start_s - earlier.start_s - earlier.wall_s
            for earlier, later in itertools.pairwise(self._recorded)
        )
        after = self._bare_seconds(taken, 0.0), self._bare_seconds(taken, pause_s)
        if self._before is not None:
            bare, paused = (fmean(pair) for pair in zip(self._before, after, strict=True))
            seconds = median(each.wall_s for each in self._recorded)
            measured = {"seconds": seconds, "bare": bare, "paused": paused}
            print(json.dumps(measured), file=self._answers, flush=True)
            _wait_for_turn()
            self._bare_seconds(taken, 0.0)
        paused = self._bare_seconds(taken, pause_s)
        self._before = self._bare_seconds(taken, 0.0), paused
        self._recorded.clear()

    def _bare_seconds(self, taken: StepTaken, pause_s: float) -> float:
        return median(self._bare_step(taken, pause_s) for _ in range(STEPS))

    def _bare_step(self, taken: StepTaken, pause_s: float) -> float:
        """Seconds of a bare step with dropout masks of its own: a processor learns a mask that
        comes twice."""
        self._bare_steps += 1
        microbatches = tuple(
            replace(each, context=replace(each.context, step=LATER + self._bare_steps))
            for each in taken.batch.microbatches
        )
        resume_s = time.perf_counter() + pause_s
        # The interpreter computes between two recorded steps too.
        while time.perf_counter() < resume_s:
            pass
        return bare_step(self._parts, replace(taken.batch, microbatches=microbatches))


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
        loop.listeners = [*loop.listeners, BareSteps(loop.parts, answers)]
        train(loop, start)

    with tempfile.TemporaryDirectory(prefix="gnnhpc-recording-") as folder:
        cell = Path(folder, "cell.jsonl")
        cell.write_text(Cell.of(array_name(experiment), 0, experiment).to_line() + "\n", "utf-8")
        _wait_for_turn()
        with mock.patch.object(TrainingLoop, "run", train_with_bare_steps):
            sys.exit(cli.run(cell=cell, out=Path(folder, "run")))


if __name__ == "__main__":
    main()

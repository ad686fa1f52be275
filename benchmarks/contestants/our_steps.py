"""Training steps of this project: by the engine of a run alone, and recorded by a real run."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NoReturn
from unittest import mock

import torch

from benchmarks.turns import Taken, answer
from gnnhpc import cli
from gnnhpc.batches.batch import Batch, BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.core.layout import Layout
from gnnhpc.data.load_graph import load_graph
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import first_input
from gnnhpc.experiment.command_line_flags import build_experiment
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.records.schema import StepRecord
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.setup import TrainingParts, compile_layers, set_up

MANY = 1_000_000
"""More training steps than are taken, so that bare steps have numbers that no other step has."""


def step(
    settings: dict[str, Any],
    *,
    dense: bool = False,
    fresh: bool = True,
    kept: bool = True,
    steps: int = 1,
) -> Callable[[], float]:
    """Seconds a step, of so many steps a turn: `train_step` and Adam.

    With `dense` the features of the graph are dense random numbers. With `fresh` every step takes a
    new mini-batch, and the time of taking it counts; otherwise all steps take the same one. With
    `kept` the allocator is that of a run, which keeps freed memory.
    """
    experiment = Experiment.model_validate({"test_steps": 0, "train_steps": MANY} | settings)
    if kept:
        images = experiment.data.facts().kind == "images"
        (map_large_blocks_separately if images else keep_freed_memory)()
    mesh = Mesh(Layout(), 0, torch.device("cuda" if experiment.device == "gpu" else "cpu"))
    plan = BatchPlan(experiment, outline(experiment), mesh, None)
    parts = set_up(experiment, mesh, None, batches=_dense_batches(plan) if dense else None)
    if experiment.compile != "off":
        compile_layers(experiment, parts)
    parts.stage.train()
    batches, optimizer = _opened(parts), parts.optimizer
    assert optimizer is not None
    first = next(batches)

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            batch = next(batches) if fresh else first
            parts.engine.train_step(batch)
            optimizer.step()
            # A replayed step has to be over before the next is set.
            parts.timer.synchronize()
        seconds = time.perf_counter() - began
        end_unless_replayed(parts)
        return seconds / steps

    return turn


def end_unless_replayed(parts: TrainingParts) -> None:
    """End this process where its training steps should be replayed on a GPU and cannot be."""
    graphs = parts.engine.graphs
    if graphs is not None and "train" in graphs.eager:
        sys.exit(f"not replayed: {graphs.eager['train']}")


def _dense_batches(plan: BatchPlan) -> ChunkBatches:
    graph = load_graph(plan.experiment.data, None)
    features = torch.rand(graph.features.shape, generator=torch.Generator().manual_seed(0))
    return ChunkBatches(plan, replace(graph, features=features))


def _opened(parts: TrainingParts) -> Iterator[Batch]:
    """The mini-batches of training."""
    with parts.batches.open("train", 0, MANY) as batches:
        yield from batches


def recorded(settings: dict[str, Any], turns: int, together: int = 10) -> NoReturn:
    """Turns of a real run: the `seconds` of a recorded step, of a `bare` and of a `paused` one.

    The run is `gnnhpc run` with its records, listeners and validation. Around every few steps of it
    a bare loop takes as many with the very layers, optimizer and mini-batch of the run: forward,
    loss, backward and optimizer with a clock around them. In processes of their own the two would
    differ by up to 4 % in either direction, by where each finds its memory. A paused step is a bare
    one that follows a pause as long as that between two recorded ones. Seconds are medians of
    `together` steps, as the first finds its threads asleep.
    """
    # It imports pandas, which would count as memory of a step.
    from benchmarks.contestants.cells import write_cell

    steps = {"warmup_steps": 2, "train_steps": 5 + (turns + 1) * together, "test_steps": 0}
    experiment = build_experiment(steps | settings, "benchmark")
    train = TrainingLoop.run

    def train_with_bare_steps(loop: TrainingLoop, start: int = 0) -> None:
        loop.listeners = [*loop.listeners, BareSteps(loop.parts, together)]
        train(loop, start)

    with tempfile.TemporaryDirectory(prefix="gnnhpc-recording-") as folder:
        out = Path(folder, "run")
        with mock.patch.object(TrainingLoop, "run", train_with_bare_steps):
            # Its steps give the answers; what ends it is what it prints last.
            sys.exit(cli.run(cell=write_cell(experiment, out), out=out))


class BareSteps(Listener):
    """Takes bare steps before and after every few measured ones, answers, and waits.

    After a wait a processor takes some steps to come back to its speed, so those of both kinds lie
    around each other, after steps that do not count. The first answer says that the run is ready.
    """

    def __init__(self, parts: TrainingParts, together: int) -> None:
        self._parts, self._together = parts, together
        self._recorded: list[StepRecord] = []
        self._before: tuple[float, float] | None = None
        """Seconds of the bare and the paused steps before the present measured ones."""
        self._bare_steps = 0

    def step_taken(self, taken: StepTaken) -> None:
        record = taken.record
        if record.phase != "train" or record.warmup or record.profiled:
            return
        self._recorded.append(record)
        if len(self._recorded) < self._together:
            return
        end_unless_replayed(self._parts)
        pause_s = median(
            later.start_s - earlier.start_s - earlier.wall_s
            for earlier, later in itertools.pairwise(self._recorded)
        )
        after = self._bare_seconds(taken, 0.0), self._bare_seconds(taken, pause_s)
        measured: Taken = {}
        if self._before is not None:
            bare, paused = (fmean(pair) for pair in zip(self._before, after, strict=True))
            seconds = median(each.wall_s for each in self._recorded)
            measured = {"seconds": seconds, "bare": bare, "paused": paused}
            if record.peak_device_mib is not None:
                measured["peak_mib"] = record.peak_device_mib
        answer(measured)
        self._bare_seconds(taken, 0.0)
        paused = self._bare_seconds(taken, pause_s)
        self._before = self._bare_seconds(taken, 0.0), paused
        self._recorded.clear()

    def _bare_seconds(self, taken: StepTaken, pause_s: float) -> float:
        return median(self._bare_step(taken, pause_s) for _ in range(self._together))

    def _bare_step(self, taken: StepTaken, pause_s: float) -> float:
        """Seconds of a bare step with dropout masks of its own: a processor learns a mask that
        comes twice."""
        self._bare_steps += 1
        microbatches = tuple(
            replace(each, context=replace(each.context, step=MANY + self._bare_steps))
            for each in taken.batch.microbatches
        )
        resume_s = time.perf_counter() + pause_s
        # The interpreter computes between two recorded steps too.
        while time.perf_counter() < resume_s:
            pass
        return bare_step(self._parts, replace(taken.batch, microbatches=microbatches))


def bare_step(parts: TrainingParts, batch: Batch) -> float:
    """Seconds of one training step without anything around it.

    On a GPU the engine takes it, so what the host does before a replay is in bare steps too.
    """
    began = time.perf_counter()
    if parts.timer.on_device:
        parts.engine.train_step(batch)
    else:
        parts.engine.gradients.zero()
        for each in batch.microbatches:
            output = parts.stage(first_input(each), each.context)
            parts.plan.loss(output, each, batch.valid_targets).backward()
        parts.stage.end_minibatch()
    if parts.optimizer is not None:
        parts.optimizer.step()
    parts.timer.synchronize()
    return time.perf_counter() - began

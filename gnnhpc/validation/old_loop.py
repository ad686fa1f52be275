"""Runs the steps of separate parts in the training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Phase, StepRecord
from gnnhpc.train.loop import Trainer
from gnnhpc.train.setup import TrainingParts
from gnnhpc.train.step_observer import BARRIER_VALUES


@dataclass(frozen=True)
class StepTaken:
    """One step of the loop, after it was recorded."""

    phase: Phase
    step: int
    batch: Batch
    output: StepOutput
    record: StepRecord


class Listener(Protocol):
    def step_taken(self, taken: StepTaken) -> None: ...

    def evaluation_begins(self) -> None: ...

    def evaluation_ended(self) -> None: ...


def run_steps(
    experiment: Experiment, mesh: Mesh, parts: TrainingParts, listener: Listener, start: int
) -> None:
    """Train from step `start` and evaluate, as the experiment says, and notify the listener."""
    observer: Any = _Observer(listener)
    Trainer(
        experiment=experiment,
        mesh=mesh,
        stage=parts.stage,
        engine=parts.engine,
        batches=parts.batches,
        task=parts.task,
        optimizer=parts.optimizer,
        timer=parts.timer,
        writer=_NoRecords(),
        observer=observer,
        report=observer.recorded,
    ).run(start)


class _NoRecords:
    def write(self, *records: object) -> None:
        pass


class _Observer:
    """Turns the calls of the loop's observer into those of a listener."""

    grad_norm = None
    over_budget = False
    looks = False

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def observing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def barrier_values(self) -> list[float]:
        return [0.0] * BARRIER_VALUES

    def after_training_step(self, step: int, batch: Batch, trained: StepOutput) -> None:
        self._batch, self._output = batch, trained

    def before_evaluation(self, step: int) -> None:
        self._listener.evaluation_begins()

    def after_test_step(self, step: int, batch: Batch, outputs: Sequence[Tensor]) -> None:
        self._batch, self._output = batch, StepOutput(outputs)

    def after_evaluation(self) -> None:
        self._listener.evaluation_ended()

    def recorded(self, record: StepRecord) -> None:
        self._listener.step_taken(
            StepTaken(record.phase, record.step, self._batch, self._output, record)
        )

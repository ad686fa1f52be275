"""Forward and backward of one batch again and again, by all ranks of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import parameters_of
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.generators import generators_put_back
from gnnhpc.models.own_attributes import attributes_put_back, users_modules
from gnnhpc.models.set_buffers import copy_into
from gnnhpc.train.setup import TrainingParts


@dataclass(frozen=True)
class Pass:
    """What all ranks had of one."""

    loss: float
    """The mean over all labelled rows."""
    labelled: int
    """How many these are."""
    score: float
    """The largest output."""
    outputs: Sequence[Tensor]
    """This rank's, of each micro-batch, where its stage has the loss."""


class Passes:
    """Of one batch; collectives."""

    def __init__(self, parts: TrainingParts, mesh: Mesh, batch: Batch) -> None:
        self.mesh = mesh
        self.parameters = parameters_of(parts.stage)
        self.batch = batch
        self.taken = 0
        self._parts = parts
        self._buffers = [(buffer, buffer.clone()) for buffer in parts.stage.buffers()]
        # A scripted module's are no dictionary, and stay the same tensors.
        users = users_modules(parts.stage).values()
        plain = [each for each in users if isinstance(each._buffers, dict)]
        self._of_users = [(each, each._buffers.copy()) for each in plain]

    def take(self) -> Pass:
        """Gradients are new ones, and buffers and a user's attributes stay as they were: each pass
        begins with the same."""
        parts, timer = self._parts, self._parts.timer
        self.taken += 1
        if parts.optimizer is not None:
            parts.optimizer.zero_grad(set_to_none=False)
        timer.prepare()
        timer.start()
        with generators_put_back(parts.stage.modules()), attributes_put_back(parts.stage):
            trained = parts.engine.train_step(self.batch)
        parts.stage.end_minibatch()
        timer.stop()
        self._put_buffers_back()
        values = torch.zeros(3, dtype=torch.float64)
        if self.mesh.has_loss:
            # In double precision: a loss in single hides what outputs tell together.
            outputs = [output.double() for output in trained.outputs]
            values[0], values[1] = parts.task.tally("train", outputs, self.batch)["loss"]
            # A chunk may have no node of its own.
            scores = (float(output.abs().max()) for output in outputs if len(output))
            values[2] = max(scores, default=0.0)
        everyone = self.mesh.gather(values)
        loss, labelled = everyone[:, :2].sum(0).tolist()
        score = float(everyone[:, 2].max())
        return Pass(loss / labelled, int(labelled), score, trained.outputs)

    def _put_buffers_back(self) -> None:
        for module, buffers in self._of_users:
            module._buffers.clear()
            module._buffers.update(buffers)
        for buffer, before in self._buffers:
            copy_into(buffer, before)

    def sum_of_stages(self, value: float) -> float:
        """Of one replica; every rank gets it."""
        everyone = self.mesh.gather(torch.tensor([value], dtype=torch.float64))
        layout = self.mesh.layout
        return float(sum(everyone[layout.rank_of(0, s), 0] for s in range(layout.stages)))


@contextlib.contextmanager
def a_step_more(experiment: Experiment, parts: TrainingParts, mesh: Mesh) -> Iterator[Passes]:
    """Of the mini-batch after the last."""
    parts.stage.train()
    step = experiment.train_steps
    with parts.batches.open("train", step, step + 1) as batches:
        yield Passes(parts, mesh, next(iter(batches)))

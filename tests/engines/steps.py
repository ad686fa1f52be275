"""One training step of an experiment in this process: what it gives, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import TrainingParts, set_up

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Step:
    losses: list[Tensor]
    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def is_to_the_bit(self, other: Step) -> bool:
        return self._same(other, torch.equal)

    def is_to_rounding(self, other: Step) -> bool:
        """For double precision: sums of the same terms in another order."""
        return self._same(other, lambda a, b: torch.allclose(a, b, rtol=1e-9, atol=1e-12))

    def _same(self, other: Step, alike: Callable[[Tensor, Tensor], bool]) -> bool:
        assert self.gradients.keys() == other.gradients.keys()
        assert self.buffers.keys() == other.buffers.keys()
        pairs = [
            *zip(self.losses, other.losses, strict=True),
            *zip(self.outputs, other.outputs, strict=True),
            *((g, other.gradients[name]) for name, g in self.gradients.items()),
            *((b, other.buffers[name]) for name, b in self.buffers.items()),
        ]
        return all(alike(a, b) for a, b in pairs)


def parts_of(experiment: Experiment) -> TrainingParts:
    """Of an experiment that one process runs."""
    return set_up(experiment, Mesh(experiment.process_layout, 0, CPU), None)


def step_of(experiment: Experiment) -> Step:
    return take_step(parts_of(experiment))


def take_step(parts: TrainingParts) -> Step:
    parts.stage.train()
    with parts.batches.open("train", 0, 1) as batches:
        trained = parts.engine.train_step(next(batches))
    gradients = {n: p.grad for n, p in parts.stage.named_parameters() if p.grad is not None}
    buffers = dict(parts.stage.named_buffers())
    return Step(list(trained.losses), list(trained.outputs), gradients, buffers)

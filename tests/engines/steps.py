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
    outputs: list[Tensor]
    numbers: dict[str, Tensor]
    """Losses, outputs, gradients and buffers by name."""

    def is_to_the_bit(self, other: Step) -> bool:
        return self._same(other, torch.equal)

    def is_to_rounding(self, other: Step) -> bool:
        """For double precision: sums of the same terms in another order."""
        return self._same(other, lambda a, b: torch.allclose(a, b, rtol=1e-9, atol=1e-12))

    def _same(self, other: Step, alike: Callable[[Tensor, Tensor], bool]) -> bool:
        assert self.numbers.keys() == other.numbers.keys()
        return all(alike(x, other.numbers[name]) for name, x in self.numbers.items())


def parts_of(experiment: Experiment) -> TrainingParts:
    """Of an experiment that one process runs."""
    return set_up(experiment, Mesh(experiment.process_layout, 0, CPU), None)


def step_of(experiment: Experiment) -> Step:
    return take_step(parts_of(experiment))


def take_step(parts: TrainingParts) -> Step:
    parts.stage.train()
    with parts.batches.open("train", 0, 1) as batches:
        trained = parts.engine.train_step(next(batches))
    numbers = dict(parts.stage.named_buffers())
    for kind, tensors in (("loss", trained.losses), ("output", trained.outputs)):
        numbers |= {f"{kind} {number}": each for number, each in enumerate(tensors)}
    numbers |= {n: p.grad for n, p in parts.stage.named_parameters() if p.grad is not None}
    return Step(list(trained.outputs), numbers)

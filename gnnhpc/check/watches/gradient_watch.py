"""Watches that the gradient an optimizer uses is what the backwards of all replicas gave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.projection import Projection, project
from gnnhpc.core.schedule import recomputed_microbatches
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment

PARAMETERS = 4
"""Of a stage that are looked at in one step, others in the next look."""
ELEMENTS = 256
"""Of each of them."""
NORM_TOLERANCE = 1e-6
"""Relative; of sums in double precision."""


@dataclass(frozen=True)
class SharedGradient:
    """A stage's gradient in one step: this replica's own, and the one that was used."""

    step: int
    own: Projection
    used: Projection


@dataclass
class GradientWatch:
    """Keeps few elements as each backward leaves them, before replicas share them.

    Under DistributedDataParallel there is no such moment that a hook could tell.
    """

    experiment: Experiment
    stage: Stage
    findings: Findings
    shared: list[SharedGradient] = field(default_factory=list)
    _looks: int = 0
    _chosen: list[tuple[str, torch.nn.Parameter]] = field(default_factory=list)
    _kept: dict[str, Tensor] = field(default_factory=dict)
    _backwards: dict[str, int] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    @property
    def possible(self) -> bool:
        layout = self.experiment.layout
        by_torch = self.experiment.engine == "pipelining" and layout.stages > 1
        return not by_torch or layout.replicas == 1

    @property
    def _backwards_wanted(self) -> int:
        """How often a step adds to a gradient: torchgpipe has one backward for all micro-batches
        of which it has kept the activations, and one for each other."""
        experiment = self.experiment
        count = experiment.microbatches
        if experiment.engine != "torchgpipe" or experiment.layout.stages == 1:
            return count
        again = len(recomputed_microbatches(experiment.activation_checkpointing, count))
        return again + (again < count)

    def attach(self) -> None:
        self.detach()
        self._kept, self._backwards, self._chosen = {}, {}, []
        trained = [(n, p) for n, p in self.stage.named_parameters() if p.requires_grad]
        if not self.possible or not trained:
            return
        first = self._looks * PARAMETERS
        self._looks += 1
        count = min(PARAMETERS, len(trained))
        self._chosen = [trained[(first + n) % len(trained)] for n in range(count)]
        for name, parameter in self._chosen:
            hook = self._keeper(name)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check_norm(self, step: int, told: float | None) -> None:
        """The norm that is recorded is that of all gradients that the optimizer was given."""
        squares = [
            float(p.grad.detach().double().square().sum())
            for p in self.stage.parameters()
            if p.grad is not None
        ]
        norm = math.sqrt(sum(squares)) if squares else None
        self.findings.looks["gradient norm"] += 1
        if (told is None) != (norm is None) or not (
            told is None or norm is None or math.isclose(told, norm, rel_tol=NORM_TOLERANCE)
        ):
            cause = f"the gradient's norm is recorded as {told}, it is {norm}"
            self.findings.add("gradient norm", "train", step, cause)

    def after_step(self, step: int) -> None:
        """The gradients are still those that the optimizer was given."""
        if not self._chosen:
            return
        self.findings.looks["gradients used"] += 1
        wanted = self._backwards_wanted
        for name, _ in self._chosen:
            found = self._backwards.get(name, 0)
            if found != wanted:
                cause = f"{found} backwards reached {name}, of {wanted} micro-batches"
                self.findings.add("gradients used", "train", step, cause)
                return
        first = self._chosen[0][1].device
        own = torch.cat([self._kept[name].to(first) for name, _ in self._chosen])
        used = torch.cat([_some(p).to(first) for _, p in self._chosen])
        self.shared.append(SharedGradient(step, project(own), project(used)))

    def _keeper(self, name: str) -> Any:
        wanted = self._backwards_wanted

        def keep(parameter: Tensor) -> None:
            self._backwards[name] = count = self._backwards.get(name, 0) + 1
            # Those before the last leave sums that nobody uses.
            if count >= wanted:
                self._kept[name] = _some(parameter)

        return keep


def _some(parameter: Tensor) -> Tensor:
    """A copy of the first elements of a gradient."""
    assert parameter.grad is not None
    return parameter.grad.detach().reshape(-1)[:ELEMENTS].clone()

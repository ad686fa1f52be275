"""Watches that a forward which is computed again in backward gives what the first one gave.

Its gradient is that of another function otherwise: of a layer that computes with something that it
moves where no engine puts it back, or asks whether gradients are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.recomputed_forwards import Place, within_backward
from gnnhpc.check.watches.stage_traffic import copied_sample
from gnnhpc.engines.stage import Stage
from gnnhpc.models.one_call import needs_no_input

NAME = "recomputed outputs"
TOLERANCE = {"float32": 1e-5, "float64": 1e-11}
"""Of the norm of the first; most kernels give the same bits, some of a GPU add in any order."""


@dataclass
class RecomputedOutputs:
    """Of every training step: copies of few elements, which are compared after the step."""

    findings: Findings
    tolerance: float
    _first: dict[Place, Tensor] = field(default_factory=dict)
    _again: dict[Place, Tensor] = field(default_factory=dict)

    def attach(self, stage: Stage) -> None:
        for number, part in enumerate(stage.parts):
            hook = needs_no_input(partial(self._keep, stage, number))
            # Within what the second clock takes for the forward.
            part.layers[-1].register_forward_hook(hook, prepend=True)

    def begin_step(self) -> None:
        self._first, self._again = {}, {}

    def after_step(self, step: int) -> None:
        if self._again:
            self.findings.looks[NAME] += 1
        for part, microbatch in sorted(self._again.keys() & self._first.keys()):
            place = part, microbatch
            cause = self._difference(self._first[place].double(), self._again[place].double())
            if cause is not None:
                where = f"micro-batch {microbatch} of part {part}"
                self.findings.add(NAME, "train", step, f"{where}, computed again, {cause}")
                return

    def _difference(self, first: Tensor, again: Tensor) -> str | None:
        if first.shape != again.shape:
            return "has another size"
        # Of a run that diverges nothing can be compared.
        if first.isnan().any():
            return None
        # As of masked scores.
        infinite = first.isinf()
        if not torch.equal(first[infinite], again[infinite]):
            return "is infinite elsewhere"
        first, again = first[~infinite], again[~infinite]
        apart, norm = float((first - again).norm()), float(first.norm())
        if apart <= self.tolerance * norm:
            return None
        return f"has outputs that are {apart:.1e} from the first ones, of a norm of {norm:.1e}"

    def _keep(
        self, stage: Stage, part: int, _layer: nn.Module, given: tuple[Any, ...], output: Any
    ) -> None:
        """Inside the step."""
        # A user's layer may stay in evaluation mode.
        if stage.training and isinstance(output, Tensor):
            kept = self._again if within_backward() else self._first
            kept[part, given[1].microbatch] = copied_sample(output.detach())

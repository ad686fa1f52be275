"""Keeps what the model's last part gives in a step, to hold the engine's outputs against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnnhpc.engines.stage import Stage
from gnnhpc.models.layers.batchnorm import is_recomputing


@dataclass
class LastOutputs:
    """References alone, in every step; a forward after the step must not be kept as one of it."""

    by_microbatch: dict[int, Tensor] = field(default_factory=dict)
    _keeps: bool = False

    @classmethod
    def of(cls, stage: Stage, *, is_last: bool) -> LastOutputs:
        found = cls()
        if is_last:
            stage.parts[-1].register_forward_hook(found._keep)
        return found

    def begin(self) -> None:
        """Before a step."""
        self.by_microbatch, self._keeps = {}, True

    def end(self) -> None:
        """After it, before anything else is computed by the stage."""
        self._keeps = False

    def other_than(self, outputs: Sequence[Tensor]) -> str | None:
        """Which of the engine's outputs, one a micro-batch, are not those of the forwards."""
        kept = [self.by_microbatch[m] for m in sorted(self.by_microbatch)]
        same = [_same(a, b) for a, b in zip(kept, outputs, strict=False)]
        if len(kept) == len(outputs) and all(same):
            return None
        which = f"of micro-batch {same.index(False)}" if False in same else "all"
        return f"the outputs {which} are not what the model's last part gave"

    def _keep(self, stage: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if self._keeps and not is_recomputing():
            self.by_microbatch[given[1].microbatch] = output.detach()


def _same(a: Tensor, b: Tensor) -> bool:
    """Mostly they are one tensor."""
    one = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    return one or torch.equal(a, b)

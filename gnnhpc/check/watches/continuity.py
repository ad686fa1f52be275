"""Watches that nothing changes a stage or its optimizer between the end of a step and the next, nor
within a step a parameter that does not train.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.state_hashes import named_in_words
from gnnhpc.engines.stage import Stage
from gnnhpc.records.schema import Phase

ELEMENTS, OF_FROZEN = 8, 256
"""Of each tensor that are kept, spread evenly; more of a parameter that does not train, as a
forward may move few rows of it."""


@dataclass
class Continuity:
    """Of parameters, buffers and the optimizer's state, few elements of each."""

    stage: Stage
    optimizer: torch.optim.Optimizer | None
    findings: Findings
    _kept: dict[str, Tensor] = field(default_factory=dict)
    _trained: list[str] = field(default_factory=list)

    def after_training_step(self, step: int) -> None:
        before = self._kept
        self.keep()
        still = [name for name, p in self.stage.named_parameters() if not p.requires_grad]
        moved = [n for n in still if n in before and not _same(self._kept[n], before[n])]
        if moved:
            cause = (
                f"{named_in_words(moved)} moved in the step and does not train: what a forward "
                "moves must be a buffer, as replicas have each their own"
            )
            self.findings.add("optimizer", "train", step, cause)

    def keep(self) -> None:
        """After a step, or after what may change buffers between steps."""
        self._kept = self._elements()
        self._trained = self._names_of_trained()

    def check(self, phase: Phase, step: int) -> None:
        """Before the next one."""
        if not self._kept:
            return
        self.findings.looks["continuity"] += 1
        now = self._elements()
        changed = [
            name
            for name in self._kept.keys() | now.keys()
            if name not in now or name not in self._kept or not _same(now[name], self._kept[name])
        ]
        if changed:
            cause = f"{named_in_words(sorted(changed))} changed since the step before"
            self.findings.add("continuity", phase, step, cause)
        trained = self._names_of_trained()
        if trained != self._trained:
            other = sorted(set(trained) ^ set(self._trained))
            cause = f"{named_in_words(other)} began or ceased to train since the step before"
            self.findings.add("continuity", phase, step, cause)

    def _names_of_trained(self) -> list[str]:
        return [name for name, p in self.stage.named_parameters() if p.requires_grad]

    def _elements(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = dict(self.stage.named_buffers())
        frozen: dict[str, Tensor] = {}
        for name, parameter in self.stage.named_parameters():
            (found if parameter.requires_grad else frozen)[name] = parameter
            if self.optimizer is not None:
                for key, value in self.optimizer.state.get(parameter, {}).items():
                    found[f"{key} of {name}"] = value
        few = {name: _some(tensor, ELEMENTS) for name, tensor in found.items()}
        return few | {name: _some(tensor, OF_FROZEN) for name, tensor in frozen.items()}


def _some(tensor: Tensor, most: int) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // most))].clone()


def _same(a: Tensor, b: Tensor) -> bool:
    """To the bit, also where it is no number."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and bool(((a == b) | (a.isnan() & b.isnan())).all())
    )

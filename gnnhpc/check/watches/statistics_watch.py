"""Watches that training moves BatchNorm's running statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.state_hashes import Hashes, hashes_of, named_in_words
from gnnhpc.engines.stage import Stage


@dataclass
class StatisticsWatch:
    """Of every BatchNorm of a stage: its buffers in a training step that is looked at, in others
    how many batches it has tracked."""

    stage: Stage
    findings: Findings
    _before: dict[str, Hashes | int] = field(default_factory=dict)
    _closely: bool = False

    def before_step(self, *, closely: bool) -> None:
        self._closely = closely
        self._before = self._states()

    def after_step(self, step: int) -> None:
        """One that was put into evaluation mode is another check's to judge."""
        if not self._before:
            return
        self.findings.looks["running statistics"] += 1
        now = self._states()
        still = [name for name, before in self._before.items() if now.get(name) == before]
        if still:
            cause = f"the running statistics of {named_in_words(still)} stood still"
            self.findings.add("running statistics", "train", step, cause)

    def _states(self) -> dict[str, Hashes | int]:
        return {
            name: hashes_of(norm.named_buffers()) if self._closely else _tracked(norm)
            for name, norm in self._norms.items()
            if norm.training
        }

    @cached_property
    def _norms(self) -> dict[str, _BatchNorm]:
        return {
            name: module
            for name, module in self.stage.named_modules()
            if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
        }


def _tracked(norm: _BatchNorm) -> int:
    assert norm.num_batches_tracked is not None
    return int(norm.num_batches_tracked)

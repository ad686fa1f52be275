"""Watches that training moves BatchNorm's running statistics."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.state_hashes import Hashes, hashes_of, named_in_words
from gnnhpc.engines.stage import Stage


@dataclass
class StatisticsWatch:
    """Of every BatchNorm of a stage, in a training step that is looked at."""

    stage: Stage
    findings: Findings
    _before: dict[str, Hashes] = field(default_factory=dict)

    def before_step(self) -> None:
        self._before = self._hashes()

    def after_step(self, step: int) -> None:
        """One that was put into evaluation mode is another check's to judge."""
        if not self._before:
            return
        self.findings.looks["running statistics"] += 1
        now = self._hashes()
        still = [name for name, before in self._before.items() if now.get(name) == before]
        if still:
            cause = f"the running statistics of {named_in_words(still)} stood still"
            self.findings.add("running statistics", "train", step, cause)

    def _hashes(self) -> dict[str, Hashes]:
        return {
            name: hashes_of(module.named_buffers())
            for name, module in self.stage.named_modules()
            if isinstance(module, _BatchNorm) and module.track_running_stats and module.training
        }

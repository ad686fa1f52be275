"""Keeps what the stage's forward is really given in one step, and looks at its modules there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gnnhpc.batches.batch import Inputs
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context


@dataclass
class StageInputs:
    """Hooks a stage between `attach` and `detach`.

    Inside a step it keeps references and reads a flag a module; what is kept is looked at
    after the step. `on_first` is called before the first micro-batch's forward.
    """

    stage: Stage
    given: list[tuple[Inputs, Context]] = field(default_factory=list)
    wrong_mode: str | None = None
    """A module that was not in the mode that the phase needs."""
    _training: bool = True
    _on_first: Callable[[], None] | None = None
    _handle: Any = None

    def attach(self, *, training: bool, on_first: Callable[[], None] | None = None) -> None:
        self.detach()
        self.given, self.wrong_mode = [], None
        self._training, self._on_first = training, on_first
        self._handle = self.stage.register_forward_pre_hook(self._before_forward)

    def detach(self) -> None:
        """Until the next `attach` forwards are as if nobody had ever looked."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_forward(self, stage: nn.Module, arguments: tuple[Any, ...]) -> None:
        x, context = arguments
        if not self.given and self._on_first is not None:
            self._on_first()
        self.given.append((x, context))
        if self.wrong_mode is None:
            for name, module in stage.named_modules():
                if module.training != self._training:
                    self.wrong_mode = name or "the stage"
                    return

"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gnnhpc.optimizers.optimizer import OptimizerConfig

if TYPE_CHECKING:
    import torch


class Sgd(OptimizerConfig):
    """Stochastic gradient descent, with momentum where it is asked for."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the last move's direction that is added to the gradient."""

    @property
    def copies(self) -> float:
        return 3.0 if self.momentum else 2.0

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        import torch

        from gnnhpc.optimizers.without_compiler import without_compiler

        kind: Any = without_compiler(torch.optim.SGD)
        built: torch.optim.Optimizer = kind(
            parameters, lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum
        )
        return built

"""The optimizers of torch: Adam, AdamW and SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gnnhpc.optimizers.optimizer import OptimizerConfig

if TYPE_CHECKING:
    import torch


class Adam(OptimizerConfig):
    """Adam (Kingma & Ba 2015), with the paper's betas and epsilon."""

    name: Literal["adam"] = "adam"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("Adam", parameters, fused=fused or None)


class AdamW(OptimizerConfig):
    """Adam whose weight decay does not pass through the gradient (Loshchilov & Hutter 2019)."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("AdamW", parameters, fused=fused or None)


class Sgd(OptimizerConfig):
    """Stochastic gradient descent, with momentum where it is asked for."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the last move's direction that is added to the gradient."""

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        return self._torchs("SGD", parameters, momentum=self.momentum)

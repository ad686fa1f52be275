"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

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

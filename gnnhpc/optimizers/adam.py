"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from gnnhpc.optimizers.optimizer import OptimizerConfig

if TYPE_CHECKING:
    import torch


class Adam(OptimizerConfig):
    """Adam (Kingma & Ba 2015), with the paper's betas and epsilon."""

    name: Literal["adam"] = "adam"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        import torch

        from gnnhpc.optimizers.without_compiler import without_compiler

        kind: Any = without_compiler(torch.optim.Adam)
        built: torch.optim.Optimizer = kind(
            parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True if fused else None
        )
        return built


class AdamW(OptimizerConfig):
    """Adam whose weight decay does not pass through the gradient (Loshchilov & Hutter 2019)."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Sequence[torch.Tensor], *, fused: bool) -> torch.optim.Optimizer:
        import torch

        from gnnhpc.optimizers.without_compiler import without_compiler

        kind: Any = without_compiler(torch.optim.AdamW)
        built: torch.optim.Optimizer = kind(
            parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True if fused else None
        )
        return built

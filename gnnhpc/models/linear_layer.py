"""A linear layer as a model's own: its weight and bias are the layer's."""

from __future__ import annotations

from torch import Tensor, nn

from gnnhpc.models.context import Context


class Linear(nn.Linear):
    """[rows, inputs] -> [rows, outputs]."""

    def forward(self, x: Tensor, context: Context) -> Tensor:  # type: ignore[override]
        return super().forward(x)

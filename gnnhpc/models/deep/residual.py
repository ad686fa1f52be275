"""A residual GCN's layer around a library's convolution."""

from __future__ import annotations

from torch import Tensor, nn

from gnnhpc.models.context import Context
from gnnhpc.models.dropout import masked_relu


class PreActivated:
    """Mixed into a GCN layer: norm, ReLU and our dropout before it, its input added after it.

    That is DeepGCNLayer's "res+" block, whose own dropout draws other masks.
    """

    training: bool

    def __init__(self, name: str, hop: int, hidden: int, *, dropout: float) -> None:
        super().__init__(hop, hidden, hidden)  # type: ignore[call-arg]
        self.name, self.dropout = name, dropout
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        active = masked_relu(self.norm(x), self.name, self.dropout, self.training, context)
        out: Tensor = super().forward(active, context)  # type: ignore[misc]
        return out + x[: len(out)]

"""ReLU and dropout between convolutions, in our form and in the libraries'."""

from __future__ import annotations

from torch import Tensor, nn

from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.neighbours import relu_dropout
from gnnhpc.models.dropout import masked_relu


class ReluDropout(nn.Module):
    """ReLU, then dropout: [rows, width] -> the same shape; `fused` in one pass each way.

    The mask of a node is the same in every chunk: it is drawn for the node's number in the graph.
    """

    def __init__(self, name: str, p: float, *, fused: bool) -> None:
        super().__init__()
        self.name, self.p = name, p
        self.activate = relu_dropout if fused else masked_relu

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.activate(x, self.name, self.p, self.training, context)

    def extra_repr(self) -> str:
        return f"{self.name}, p={self.p}"

"""Activations between graph layers: ELU, log-softmax, and ReLU with dropout."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.models.context import Context
from gnnhpc.models.layers.dropout import masked_relu, relu_dropout


class Elu(nn.Module):
    """ELU: [rows, features] -> the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.elu(x)


class LogSoftmax(nn.Module):
    """[rows, classes] -> log-probabilities of the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.log_softmax(x, dim=-1)


class ReluDropout(nn.Module):
    """ReLU, then dropout: [rows, width] -> the same shape; `fused` computes both in one pass.

    The mask of a node is the same in every chunk: it depends on the node's number in the graph.
    """

    def __init__(self, name: str, p: float, *, fused: bool) -> None:
        super().__init__()
        self.name, self.p = name, p
        self.activate = relu_dropout if fused else masked_relu

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.activate(x, self.name, self.p, self.training, context)

    def extra_repr(self) -> str:
        return f"{self.name}, p={self.p}"

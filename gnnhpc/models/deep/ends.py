"""First and last layers of deep networks, in our form (`fused`) or in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.activations import ReluDropout
from gnnhpc.models.sparse_linear import project


class LinearInput(nn.Module):
    """[rows, features] -> [rows, hidden]."""

    def __init__(self, inputs: int, outputs: int, *, fused: bool) -> None:
        super().__init__()
        self.lin, self.fused = nn.Linear(inputs, outputs), fused

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        return of_features(x, self.lin, fused=self.fused)


class NormReadout(nn.Module):
    """LayerNorm, ReLU, dropout and a linear layer: [rows, hidden] -> [rows, classes]."""

    def __init__(
        self, name: str, inputs: int, outputs: int, dropout: float, *, fused: bool
    ) -> None:
        super().__init__()
        self.activation = ReluDropout(name, dropout, fused=fused)
        self.norm = nn.LayerNorm(inputs)
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.lin(self.activation(self.norm(x), context))
        return out


class DoubledInput(nn.Module):
    """h0 = relu(W x + b), twice side by side: [rows, features] -> [rows, 2 * hidden].

    The first is what the first convolution works on, dropped out; the second stays.
    """

    def __init__(self, name: str, inputs: int, hidden: int, dropout: float, *, fused: bool) -> None:
        super().__init__()
        self.lin, self.fused = nn.Linear(inputs, hidden), fused
        self.activation = ReluDropout(name, dropout, fused=fused)

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        first = torch.relu(of_features(x, self.lin, fused=self.fused))
        return torch.cat((self.activation(first, context), first), 1)


class HalfReadout(nn.Module):
    """A linear layer of h alone: [rows, 2 * hidden] -> [rows, classes]."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.lin = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.lin(x[:, : self.hidden])
        return out


def of_features(x: Tensor | SparseRows, linear: nn.Linear, *, fused: bool) -> Tensor:
    """A linear layer of features, which plain torch takes dense."""
    if fused:
        return project(x, linear.weight) + linear.bias
    out: Tensor = linear(x.to_dense())
    return out

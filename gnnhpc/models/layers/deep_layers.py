"""Layers of deep graph networks: the first, the last, and fused convolutions.

Fused convolutions add residuals and biases in the pass that sums over neighbours. First and last
layers are `fused`, or plain torch for the libraries' implementations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.aggregate import weighted_sum
from gnnhpc.models.layers.convolution_layers import degree_weights
from gnnhpc.models.layers.dropout_layer import ReluDropout
from gnnhpc.models.layers.linear import features_linear, glorot, linear
from gnnhpc.models.model import Context


class ResGcnLayer(nn.Module):
    """x + GCN(dropout(relu(norm(x)))): [rows_in, hidden] -> [rows_out, hidden]."""

    def __init__(self, name: str, hop: int, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.hop, self.activation = hop, ReluDropout(name, dropout, fused=True)
        self.norm = nn.LayerNorm(hidden)
        self.lin = nn.Linear(hidden, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))
        glorot(self.lin.weight)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = degree_weights(context, block, x.dtype)
        product = linear(self.activation(self.norm(x), context), self.lin.weight)
        return weighted_sum(product, block, weights, x[: block.rows_out], self.bias)


class GcniiLayer(nn.Module):
    """[h | h0] of [rows_in, 2 * hidden] -> the same of [rows_out, 2 * hidden]."""

    def __init__(
        self, name: str, hop: int, hidden: int, *, alpha: float, theta: float, dropout: float
    ) -> None:
        super().__init__()
        self.hop, self.hidden = hop, hidden
        self.activation = ReluDropout(name, dropout, fused=True)
        self.alpha, self.beta = alpha, math.log(theta / (hop + 1) + 1.0)
        self.weight1 = nn.Parameter(torch.empty(hidden, hidden))
        glorot(self.weight1)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = degree_weights(context, block, x.dtype)
        first = x[: block.rows_out, self.hidden :]
        around = weighted_sum(x[:, : self.hidden], block, weights.times(1.0 - self.alpha))
        total = torch.add(around, first, alpha=self.alpha)
        out = torch.addmm(total, total, self.weight1, beta=1.0 - self.beta, alpha=self.beta)
        return torch.cat((self.activation(out, context), first), 1)


class LinearInput(nn.Module):
    """[rows, features] -> [rows, hidden]."""

    def __init__(self, inputs: int, outputs: int, *, fused: bool) -> None:
        super().__init__()
        self.lin, self.fused = nn.Linear(inputs, outputs), fused

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        return features_linear(x, self.lin, fused=self.fused)


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

    The first copy is dropped out for the first convolution; the second stays as it is.
    """

    def __init__(self, name: str, inputs: int, hidden: int, dropout: float, *, fused: bool) -> None:
        super().__init__()
        self.lin, self.fused = nn.Linear(inputs, hidden), fused
        self.activation = ReluDropout(name, dropout, fused=fused)

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        first = torch.relu(features_linear(x, self.lin, fused=self.fused))
        return torch.cat((self.activation(first, context), first), 1)


class HalfReadout(nn.Module):
    """A linear layer of h, the first half: [rows, 2 * hidden] -> [rows, classes]."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.lin = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.lin(x[:, : self.hidden])
        return out

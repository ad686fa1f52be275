"""Convolutions of deep networks in our form: residuals and biases are added where sums are made."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.fused import glorot
from gnnhpc.models.convolutions.neighbours import relu_dropout, weighted_sum
from gnnhpc.models.convolutions.weights import degree_weights
from gnnhpc.models.later_weights import LeavesWeights
from gnnhpc.models.sparse_linear import linear


class ResGcnLayer(LeavesWeights):
    """x + GCN(dropout(relu(norm(x)))): [rows_in, hidden] -> [rows_out, hidden]."""

    def __init__(self, name: str, hop: int, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.name, self.hop, self.dropout = name, hop, dropout
        self.norm = nn.LayerNorm(hidden)
        self.lin = nn.Linear(hidden, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))
        glorot(self.lin.weight)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = degree_weights(context, block, x.dtype)
        active = relu_dropout(self.norm(x), self.name, self.dropout, self.training, context)
        return weighted_sum(
            linear(active, self.lin.weight), block, weights, x[: block.rows_out], self.bias
        )


class GcniiLayer(nn.Module):
    """[h | h0] of [rows_in, 2 * hidden] -> the same of [rows_out, 2 * hidden]."""

    def __init__(
        self, name: str, hop: int, hidden: int, *, alpha: float, theta: float, dropout: float
    ) -> None:
        super().__init__()
        self.name, self.hop, self.hidden, self.dropout = name, hop, hidden, dropout
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
        active = relu_dropout(out, self.name, self.dropout, self.training, context)
        return torch.cat((active, first), 1)

"""What follows a GAT's attention: ELU, and log-softmax after the last."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.models.context import Context


class Elu(nn.Module):
    """[rows, features] -> the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.elu(x)


class LogSoftmax(nn.Module):
    """[rows, classes] -> log-probabilities."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.log_softmax(x, dim=-1)

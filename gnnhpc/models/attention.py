"""What an attention layer of any form is told, and what follows from it alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.mask import Mask
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import active_mask


@dataclass(frozen=True)
class AttentionSettings:
    """Of a layer [rows_in, inputs] -> [rows_out, heads * channels].

    With `average`, heads are averaged: [rows_out, channels].
    """

    name: str
    number: int
    """Among the attention layers, from 0: its edges are the block of that number."""
    inputs: int
    channels: int
    heads: int
    average: bool
    dropout: float
    """Of attention coefficients."""

    def block(self, context: Context) -> Block:
        return context.chunk.blocks[self.number]

    def mask(self, training: bool, context: Context) -> Mask | None:
        """Of the coefficients; none in evaluation or without dropout."""
        return active_mask(self.name, self.dropout, training, context)

    def bias(self) -> nn.Parameter:
        """Zeros, added after heads are averaged."""
        return nn.Parameter(torch.zeros(self.channels * (1 if self.average else self.heads)))

    def joined(self, out: Tensor) -> Tensor:
        """[rows_out, heads, channels] with its heads side by side, or averaged."""
        return out.mean(1) if self.average else out.flatten(1)

    def __str__(self) -> str:
        return f"{self.name}, heads={self.heads}, channels={self.channels}, p={self.dropout}"

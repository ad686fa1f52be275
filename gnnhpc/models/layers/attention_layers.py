"""GAT's and GATv2's layers; `gnnhpc.kernels.attention` has what they compute.

Parameters, names and initial values are those of PyG 2.8's GATConv and GATv2Conv.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.attention import Heads, attend
from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.models.layers.dropout import active_mask
from gnnhpc.models.layers.linear import Features, glorot, project
from gnnhpc.models.model import Context


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of a layer [rows_in, inputs] -> [rows_out, heads * channels].

    With `average`, heads are averaged: [rows_out, channels].
    """

    name: str
    number: int
    """The layer's number among the attention layers, from 0; it uses the block of that number."""
    inputs: int
    channels: int
    heads: int
    average: bool
    dropout: float
    """Dropout probability of attention coefficients."""

    @property
    def shape(self) -> Heads:
        """What the kernels need of them."""
        return Heads(self.heads, self.channels, self.average)

    def block(self, context: Context) -> Block:
        """The edges that the layer works on."""
        return context.chunk.blocks[self.number]

    def mask(self, training: bool, context: Context) -> Mask | None:
        """The dropout mask of the coefficients; None in evaluation or without dropout."""
        return active_mask(self.name, self.dropout, training, context)

    def bias(self) -> nn.Parameter:
        """A bias of zeros; it is added after heads are averaged."""
        return nn.Parameter(torch.zeros(self.channels * (1 if self.average else self.heads)))

    def __str__(self) -> str:
        return f"{self.name}, heads={self.heads}, channels={self.channels}, p={self.dropout}"


class _Attention(nn.Module):
    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.bias = settings.bias()

    def vector(self) -> nn.Parameter:
        """An attention vector [1, heads, channels], to be initialized."""
        return nn.Parameter(torch.empty(1, self.settings.heads, self.settings.channels))

    def extra_repr(self) -> str:
        return str(self.settings)


class GatLayer(_Attention):
    """GAT's layer: [rows_in, inputs] -> [rows_out, heads * channels], or [rows_out, channels]."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        self.lin = nn.Linear(settings.inputs, settings.heads * settings.channels, bias=False)
        self.att_src, self.att_dst = self.vector(), self.vector()
        for parameter in (self.lin.weight, self.att_src, self.att_dst):
            glorot(parameter)

    def forward(self, x: Features, context: Context) -> Tensor:
        settings, shape = self.settings, self.settings.shape
        h = project(x, shape.ordered(self.lin.weight))
        block, mask = settings.block(context), settings.mask(self.training, context)
        vectors = torch.cat((self.att_src, self.att_dst))
        return attend(h, None, vectors, self.bias, block, shape, mask)


class Gatv2Layer(_Attention):
    """GATv2's layer, with the shapes of `GatLayer`."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        self.lin_l = nn.Linear(settings.inputs, settings.heads * settings.channels)
        self.lin_r = nn.Linear(settings.inputs, settings.heads * settings.channels)
        self.att = self.vector()
        for linear in (self.lin_l, self.lin_r):
            glorot(linear.weight)
            nn.init.zeros_(linear.bias)
        glorot(self.att)

    def forward(self, x: Features, context: Context) -> Tensor:
        settings, shape = self.settings, self.settings.shape
        source, target = (
            project(x, shape.ordered(each.weight)) + shape.ordered(each.bias)
            for each in (self.lin_l, self.lin_r)
        )
        block, mask = settings.block(context), settings.mask(self.training, context)
        return attend(source, target, self.att, self.bias, block, shape, mask)

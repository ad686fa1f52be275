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
from gnnhpc.models.layers.dropout_layer import active_mask
from gnnhpc.models.layers.linear import Features, glorot, project
from gnnhpc.models.model import Context


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of a layer of these heads, of rows [rows_in, inputs]."""

    name: str
    number: int
    """The layer's number among the attention layers, from 0; it uses the block of that number."""
    inputs: int
    heads: Heads
    dropout: float
    """Dropout probability of attention coefficients."""

    def block(self, context: Context) -> Block:
        """The edges that the layer works on."""
        return context.chunk.blocks[self.number]

    def mask(self, training: bool, context: Context) -> Mask | None:
        """The dropout mask of the coefficients; None in evaluation or without dropout."""
        return active_mask(self.name, self.dropout, training, context)

    def bias(self) -> nn.Parameter:
        """A bias of zeros; it is added after heads are averaged."""
        return nn.Parameter(torch.zeros(self.heads.outputs))


class _Attention(nn.Module):
    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.bias = settings.bias()

    def vector(self) -> nn.Parameter:
        """An attention vector [1, heads, channels], to be initialized."""
        heads = self.settings.heads
        return nn.Parameter(torch.empty(1, heads.count, heads.channels))

    def attend(
        self, source: Tensor, target: Tensor | None, vectors: Tensor, context: Context
    ) -> Tensor:
        """What `gnnhpc.kernels.attention.attend` makes of these products and vectors."""
        settings = self.settings
        block, mask = settings.block(context), settings.mask(self.training, context)
        return attend(source, target, vectors, self.bias, block, settings.heads, mask)


class GatLayer(_Attention):
    """GAT's layer: [rows_in, inputs] -> [rows_out, heads * channels], or [rows_out, channels]."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        self.lin = nn.Linear(settings.inputs, settings.heads.width, bias=False)
        self.att_src, self.att_dst = self.vector(), self.vector()
        for parameter in (self.lin.weight, self.att_src, self.att_dst):
            glorot(parameter)

    def forward(self, x: Features, context: Context) -> Tensor:
        h = project(x, self.settings.heads.ordered(self.lin.weight))
        return self.attend(h, None, torch.cat((self.att_src, self.att_dst)), context)


class Gatv2Layer(_Attention):
    """GATv2's layer, with the shapes of `GatLayer`."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__(settings)
        self.lin_l = nn.Linear(settings.inputs, settings.heads.width)
        self.lin_r = nn.Linear(settings.inputs, settings.heads.width)
        self.att = self.vector()
        for linear in (self.lin_l, self.lin_r):
            glorot(linear.weight)
            nn.init.zeros_(linear.bias)
        glorot(self.att)

    def forward(self, x: Features, context: Context) -> Tensor:
        ordered = self.settings.heads.ordered
        source, target = (
            project(x, ordered(each.weight)) + ordered(each.bias)
            for each in (self.lin_l, self.lin_r)
        )
        return self.attend(source, target, self.att, context)

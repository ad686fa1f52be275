"""DGL's own GATv2Conv over a chunk's block, with our attention dropout, for equal masks."""

from __future__ import annotations

from typing import ClassVar

import torch
from dgl.nn.pytorch import GATv2Conv
from torch import Tensor, nn

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.dgl_parts import AttentionDropout, PygNames, dgl_block
from gnnhpc.models.dropout import active_mask


class AttentionLayer(PygNames, GATv2Conv):  # type: ignore[misc]
    """GATv2Conv, and the output's bias that PyG's has.

    Arguments are those of gnnhpc.models.gatv2.fused.AttentionLayer.
    """

    of_pyg: ClassVar[dict[str, str]] = {"fc_src": "lin_l", "fc_dst": "lin_r", "attn": "att"}

    def __init__(
        self,
        name: str,
        attention: int,
        inputs: int,
        channels: int,
        heads: int,
        *,
        average: bool,
        dropout: float,
    ) -> None:
        super().__init__(inputs, channels, heads, allow_zero_in_degree=True)
        self.name, self.attention, self.attention_dropout = name, attention, dropout
        self.average = average
        self.attn_drop = AttentionDropout()
        self.bias = nn.Parameter(torch.zeros(channels if average else heads * channels))
        self.take_pyg_names()

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block = context.chunk.blocks[self.attention]
        mask = active_mask(self.name, self.attention_dropout, self.training, context)
        self.attn_drop.mask, self.attn_drop.edge = mask, block.edge
        out: Tensor = super().forward(dgl_block(block, loops=True), x.to_dense())
        return (out.mean(1) if self.average else out.flatten(1)) + self.bias

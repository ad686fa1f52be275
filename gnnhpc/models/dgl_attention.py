"""What our uses of DGL's attention layers share: our dropout, PyG's bias and names."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.dgl_parts import AttentionDropout, PygNames, dgl_block
from gnnhpc.models.dropout import active_mask


class MaskedAttention(PygNames):
    """Mixed into an attention layer of DGL's, over a chunk's block.

    Arguments are those of `AttentionLayer` in our form. The bias is added after heads are averaged,
    as PyG's is.
    """

    options: ClassVar[dict[str, Any]] = {}
    """Of DGL's layer, so that it adds no bias of its own."""

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
        options = {"allow_zero_in_degree": True, **self.options}
        super().__init__(inputs, channels, heads, **options)
        self.name, self.attention, self.attention_dropout = name, attention, dropout
        self.average = average
        self.attn_drop = AttentionDropout()
        # Without a bias of its own GATConv has an empty buffer under that name.
        self._buffers.pop("bias", None)
        self.bias = nn.Parameter(torch.zeros(channels if average else heads * channels))
        self.take_pyg_names()

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block = context.chunk.blocks[self.attention]
        mask = active_mask(self.name, self.attention_dropout, self.training, context)
        self.attn_drop.mask, self.attn_drop.edge = mask, block.edge
        out: Tensor = super().forward(dgl_block(block, loops=True), x.to_dense())
        return (out.mean(1) if self.average else out.flatten(1)) + self.bias

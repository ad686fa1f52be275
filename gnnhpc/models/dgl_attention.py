"""What our uses of DGL's attention layers share: our dropout, PyG's bias and names."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.attention import AttentionSettings
from gnnhpc.models.context import Context
from gnnhpc.models.dgl_parts import AttentionDropout, PygNames, dgl_block


class MaskedAttention(PygNames):
    """Mixed into an attention layer of DGL's, over a chunk's block.

    The bias is added after heads are averaged, as PyG's is.
    """

    options: ClassVar[dict[str, Any]] = {}
    """Of DGL's layer, so that it adds no bias of its own."""

    def __init__(self, settings: AttentionSettings) -> None:
        options = {"allow_zero_in_degree": True, **self.options}
        super().__init__(settings.inputs, settings.channels, settings.heads, **options)
        self.settings = settings
        self.attn_drop = AttentionDropout()
        # Without a bias of its own GATConv has an empty buffer under that name.
        self._buffers.pop("bias", None)
        self.bias = settings.bias()
        self.take_pyg_names()

    def forward(self, x: Tensor | SparseRows, context: Context) -> Tensor:
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        self.attn_drop.mask, self.attn_drop.edge = mask, None if mask is None else block.edge
        out: Tensor = super().forward(dgl_block(block, loops=True), x.to_dense())
        return self.settings.joined(out) + self.bias

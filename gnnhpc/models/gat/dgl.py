"""DGL's own GATConv over a chunk's block, with our attention dropout, for equal masks."""

from __future__ import annotations

from typing import Any, ClassVar

from dgl.nn.pytorch import GATConv

from gnnhpc.models.dgl_attention import MaskedAttention


class AttentionLayer(MaskedAttention, GATConv):  # type: ignore[misc]
    """As gnnhpc.models.gat.fused.AttentionLayer."""

    options: ClassVar[dict[str, Any]] = {"bias": False}
    of_pyg: ClassVar[dict[str, str]] = {"fc": "lin", "attn_l": "att_src", "attn_r": "att_dst"}

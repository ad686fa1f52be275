"""DGL's own GATv2Conv over a chunk's block, with our attention dropout, for equal masks."""

from __future__ import annotations

from typing import ClassVar

from dgl.nn.pytorch import GATv2Conv

from gnnhpc.models.dgl_attention import MaskedAttention


class AttentionLayer(MaskedAttention, GATv2Conv):  # type: ignore[misc]
    """As gnnhpc.models.gatv2.fused.AttentionLayer."""

    of_pyg: ClassVar[dict[str, str]] = {"fc_src": "lin_l", "fc_dst": "lin_r", "attn": "att"}

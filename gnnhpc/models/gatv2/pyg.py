"""PyG's own GATv2Conv over a chunk's block, with our attention dropout, for equal masks."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import GATv2Conv

from gnnhpc.models.pyg_attention import MaskedAttention


class AttentionLayer(MaskedAttention, GATv2Conv):  # type: ignore[misc]
    """As gnnhpc.models.gatv2.fused.AttentionLayer."""

    def edge_update(
        self,
        x_j: Tensor,
        x_i: Tensor,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """The softmax as PyG computes it, then our mask."""
        return self.masked(super().edge_update(x_j, x_i, edge_attr, index, ptr, dim_size))

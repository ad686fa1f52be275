"""PyG's own GATConv as the reference, with our attention dropout, for equal masks."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import GATConv

from gnnhpc.models.pyg_attention import MaskedAttention


class AttentionLayer(MaskedAttention, GATConv):  # type: ignore[misc]
    """As gnnhpc.models.gat.fused.AttentionLayer."""

    def edge_update(
        self,
        alpha_j: Tensor,
        alpha_i: Tensor | None,
        edge_attr: Tensor | None,
        index: Tensor,
        ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:
        """The softmax as PyG computes it, then our mask."""
        return self.masked(super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size))

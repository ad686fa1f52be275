"""PyG's own pooling over a vector that names each node's graph."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import global_add_pool, global_mean_pool

from gnnhpc.models.context import Context
from gnnhpc.models.pooling import fused

POOLS = {"mean": global_mean_pool, "sum": global_add_pool}


class Pooling(fused.Pooling):
    def forward(self, x: Tensor, context: Context) -> Tensor:
        block = context.chunk.pooling_block
        pooled: Tensor = POOLS[self.how](x, block.target, block.rows_out)
        return pooled

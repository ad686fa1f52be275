"""DGL's own convolutions over a chunk's block.

Classes, arguments and parameters are those of `gnnhpc.models.convolutions.fused`; DGL's layers hold
their parameters under PyG's names here. It has no GraphConv of Morris et al., and its SAGE takes
the largest of projected neighbours only.
"""

from __future__ import annotations

from typing import ClassVar

from dgl.nn.pytorch import GINConv, SAGEConv
from dgl.nn.pytorch import GraphConv as DglGcn
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.core.errors import InputError
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.pyg import edge_weights
from gnnhpc.models.dgl_parts import PygNames, dgl_block

Input = Tensor | SparseRows


class GcnLayer(DglGcn):  # type: ignore[misc]
    """GraphConv with each edge's weight given, as DGL's EdgeWeightNorm would compute it."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, norm="none", weight=False, allow_zero_in_degree=True)
        self.hop = hop
        self.lin = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        weights = edge_weights(context, block, self.bias.dtype)
        rows = x.to_dense()
        out: Tensor = super().forward(
            dgl_block(block, loops=True),
            (rows, rows[: block.rows_out]),
            weight=self.lin.weight.t(),
            edge_weight=weights,
        )
        return out


class _Product(nn.Linear):
    """A linear layer whose bias is added elsewhere: a node without neighbours has it too."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class _Sage(PygNames, SAGEConv):  # type: ignore[misc]
    of_pyg: ClassVar[dict[str, str]] = {"fc_pool": "lin", "fc_neigh": "lin_l", "fc_self": "lin_r"}

    def __init__(self, hop: int, inputs: int, outputs: int, aggregator: str) -> None:
        super().__init__(inputs, outputs, aggregator, bias=False)
        self.hop = hop
        self.fc_neigh = _Product(inputs, outputs)
        self.take_pyg_names()

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        rows = x.to_dense()
        graph = dgl_block(block, loops=False)
        out: Tensor = super().forward(graph, (rows, rows[: block.rows_out]))
        out += self.fc_neigh.bias
        return out


class MeanSageLayer(_Sage):
    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(hop, inputs, outputs, "mean")


class MaxSageLayer(_Sage):
    """DGL's pooling aggregator; raises InputError for the largest of neighbours themselves."""

    def __init__(self, hop: int, inputs: int, outputs: int, *, pool: bool) -> None:
        if not pool:
            raise InputError("model", "implementation", "dgl, which lacks aggregator max", "pool")
        super().__init__(hop, inputs, outputs, "pool")


class GinLayer(GINConv):  # type: ignore[misc]
    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(aggregator_type="sum")
        self.hop = hop
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        self.apply_func = self._applied
        # A fixed eps is a setting, not part of what a run learns and saves.
        del self._buffers["eps"]
        self.eps = 0.0

    def _applied(self, total: Tensor) -> Tensor:
        out: Tensor = self.nn(total)
        return out

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        rows = x.to_dense()
        graph = dgl_block(block, loops=False)
        out: Tensor = super().forward(graph, (rows, rows[: block.rows_out]))
        return out

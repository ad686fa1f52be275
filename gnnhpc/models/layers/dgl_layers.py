"""DGL's own layers over a chunk's block.

Classes have the names, arguments and parameters of the fused layers in `attention_layers`,
`convolution_layers` and `deep_layers`; they hold their parameters under PyG's names. Dropout is
this project's, so that masks are equal. DGL has no GraphConv of Morris et al., its SAGE takes the
largest of projected neighbours only, and its GCNII is left out: it is wrong for chunks with a halo.
`gnnhpc.models.libraries.import_dgl` comes first.
"""

from __future__ import annotations

from typing import Any, ClassVar

import dgl
import torch
from dgl.nn import pytorch as dgl_nn
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.kernels.dropout_mask import Mask, number_entries
from gnnhpc.models.layers import convolution_layers
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.pyg_layers import Preactivated, edge_weights
from gnnhpc.models.model import Context

Input = Tensor | SparseRows

WITHOUT_LOOPS = "dgl, without self-loops"
"""The key in `Block.kept` of a block's graph; DGL's sampler keeps the graph that it made there."""


class _PygNames(nn.Module):
    """Mixed into a layer of DGL's: its parts are kept under PyG's names, and found under both."""

    pyg_names: ClassVar[dict[str, str]]
    """PyG's name by DGL's name, of linear layers and parameters."""

    def take_pyg_names(self) -> None:
        """Rename the parts; call it once DGL's layer has been made."""
        for held in (self._modules, self._parameters):
            parts: Any = held
            for name in [name for name in self.pyg_names if name in parts]:
                parts[self.pyg_names[name]] = parts.pop(name)

    def __getattr__(self, name: str) -> Any:
        renamed = self.pyg_names.get(name, name)
        has = renamed in self._modules or renamed in self._parameters
        return super().__getattr__(renamed if has else name)


class _AttentionDropout(nn.Module):
    """Takes the place of the dropout of [edges, heads, 1] coefficients in DGL's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Mask | None = None
        self.edge: Tensor | None = None

    def forward(self, coefficients: Tensor) -> Tensor:
        if self.mask is None:
            return coefficients
        assert self.edge is not None
        entries = number_entries(self.edge, coefficients.shape[1])
        return coefficients * self.mask.weights(entries, coefficients.dtype)[..., None]


class _Attention(_PygNames):
    """Mixed into an attention layer of DGL's; the bias is added after heads are averaged."""

    options: ClassVar[dict[str, Any]] = {}
    """Options of DGL's layer that keep it from adding a bias of its own."""

    def __init__(self, settings: AttentionSettings) -> None:
        options = {"allow_zero_in_degree": True, **self.options}
        heads = settings.heads
        super().__init__(settings.inputs, heads.channels, heads.count, **options)
        self.settings = settings
        self.attn_drop = _AttentionDropout()
        # Without a bias of its own GATConv has an empty buffer of that name.
        self._buffers.pop("bias", None)
        self.bias = settings.bias()
        self.take_pyg_names()

    def forward(self, x: Input, context: Context) -> Tensor:
        block, mask = self.settings.block(context), self.settings.mask(self.training, context)
        self.attn_drop.mask, self.attn_drop.edge = mask, None if mask is None else block.edge
        out: Tensor = super().forward(dgl_block(block, loops=True), x.to_dense())
        return self.settings.heads.joined(out) + self.bias


class GatLayer(_Attention, dgl_nn.GATConv):  # type: ignore[misc]
    """GATConv."""

    options: ClassVar[dict[str, Any]] = {"bias": False}
    pyg_names: ClassVar[dict[str, str]] = {"fc": "lin", "attn_l": "att_src", "attn_r": "att_dst"}


class Gatv2Layer(_Attention, dgl_nn.GATv2Conv):  # type: ignore[misc]
    """GATv2Conv."""

    pyg_names: ClassVar[dict[str, str]] = {"fc_src": "lin_l", "fc_dst": "lin_r", "attn": "att"}


class GcnLayer(dgl_nn.GraphConv):  # type: ignore[misc]
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


class _OfNeighbours:
    """Mixed into a convolution of DGL's that takes pairs of rows and no self-loops."""

    hop: int

    def forward(self, x: Input, context: Context) -> Tensor:
        block = context.chunk.blocks[self.hop]
        rows = x.to_dense()
        graph, pair = dgl_block(block, loops=False), (rows, rows[: block.rows_out])
        out: Tensor = super().forward(graph, pair)  # type: ignore[misc]
        return out


class _Product(nn.Linear):
    """A linear layer whose bias is added elsewhere: a node without neighbours has it too."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class _Sage(_PygNames, _OfNeighbours, dgl_nn.SAGEConv):  # type: ignore[misc]
    pyg_names: ClassVar[dict[str, str]] = {
        "fc_pool": "lin",
        "fc_neigh": "lin_l",
        "fc_self": "lin_r",
    }

    aggregator: ClassVar[str]

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, self.aggregator, bias=False)
        self.hop = hop
        self.fc_neigh = _Product(inputs, outputs)
        self.take_pyg_names()

    def forward(self, x: Input, context: Context) -> Tensor:
        out: Tensor = super().forward(x, context)
        out += self.fc_neigh.bias
        return out


class MeanSageLayer(_Sage):
    """SAGEConv with DGL's mean aggregator."""

    aggregator = "mean"


class MaxSageLayer(_Sage):
    """SAGEConv with DGL's pooling aggregator, which `pool` must ask for."""

    aggregator = "pool"

    def __init__(self, hop: int, inputs: int, outputs: int, *, pool: bool) -> None:
        assert pool
        super().__init__(hop, inputs, outputs)


class GinLayer(_OfNeighbours, dgl_nn.GINConv):  # type: ignore[misc]
    """GINConv with two linear layers."""

    def __init__(self, hop: int, inputs: int, outputs: int) -> None:
        super().__init__(aggregator_type="sum")
        self.hop = hop
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        # In the dictionary: their parameters would else have two names.
        self.__dict__["apply_func"] = self.nn
        # A fixed eps is a setting, not part of what a run learns and saves.
        del self._buffers["eps"]
        self.eps = 0.0


class ResGcnLayer(Preactivated, GcnLayer):  # type: ignore[misc]
    """GraphConv in a residual block."""


class Pooling(convolution_layers.Pooling):
    """DGL's pooling over the numbers of nodes of each graph, as its readouts call it."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        counts = context.chunk.pooling_block.indptr.diff()
        pooled: Tensor = dgl.ops.segment_reduce(counts, x, reducer=self.how)
        return pooled


def dgl_block(block: Block, *, loops: bool) -> Any:
    """The block's edges, in their order, as a graph of DGL's; made once for a block."""
    name = "dgl, with self-loops" if loops else WITHOUT_LOOPS
    if name not in block.kept:
        edges: Any = tuple(block.neighbours)
        if loops:
            # All edges are sorted by target, so that DGL has nothing to sort. They are numbered in
            # their order, as DGL assumes in all of its kernels but one.
            numbers = torch.arange(len(block.source), device=block.source.device)
            edges = "csc", (block.indptr.long(), block.source.long(), numbers)
        sizes = {"num_src_nodes": block.rows_in, "num_dst_nodes": block.rows_out}
        graph = dgl.create_block(edges, **sizes).formats(["coo", "csc", "csr"])
        # The formats of forward and backward kernels are made now, so that no step makes them.
        graph.create_formats_()
        block.kept[name] = graph
    return block.kept[name]

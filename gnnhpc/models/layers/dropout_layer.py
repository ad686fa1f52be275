"""Activations, and dropout of them and of sparse features, with masks that are computed."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.graphs.node_features import IndexedRows, SparseRows
from gnnhpc.kernels.dropout_mask import Mask, layer_mask
from gnnhpc.kernels.rowwise import drop, relu_drop
from gnnhpc.kernels.sparse_features import DroppedRows, reads_dense
from gnnhpc.models.model import Context


def active_mask(name: str, p: float, training: bool, context: Context) -> Mask | None:
    """The mask of layer `name` for this micro-batch; None in evaluation or where p is 0."""
    if not training or p == 0:
        return None
    if context.masks is not None:
        return context.masks.mask(context.seed, name, p)
    return layer_mask(context.seed, context.step, name, p)


class Dropout(nn.Module):
    """Dropout of a graph's activations [rows, width], or of the stored values of sparse rows.

    The mask depends on the experiment's seed, the training step, `name`, and each node's number in
    the graph, and on nothing else: it is the same in every layout and chunk, and when a forward is
    recomputed. Custom models use it in place of `torch.nn.Dropout`; `name` is the layer's name.
    """

    def __init__(self, name: str, p: float, *, before_product: bool = False) -> None:
        """`before_product` says that it drops features of a fused layer that begins with `project`.

        Mask and product are then computed in one pass.
        """
        super().__init__()
        self.name = name
        self.p = p
        self.before_product = before_product

    def forward(
        self, x: Tensor | SparseRows | IndexedRows, context: Context
    ) -> Tensor | SparseRows | IndexedRows | DroppedRows:
        mask = active_mask(self.name, self.p, self.training, context)
        if mask is None:
            return x
        if isinstance(x, SparseRows):
            return x.with_values(drop(x.values[:, None], x.entries, mask)[:, 0])
        rows = context.chunk.nodes[: len(x)]
        features, at = (x.features, x.nodes) if isinstance(x, IndexedRows) else (x, None)
        if self.before_product and reads_dense(features):
            return DroppedRows(features.contiguous(), rows, mask, at)
        return drop(x if isinstance(x, Tensor) else x.to_dense(), rows, mask)


class Elu(nn.Module):
    """ELU: [rows, features] -> the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.elu(x)


class LogSoftmax(nn.Module):
    """[rows, classes] -> log-probabilities of the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.log_softmax(x, dim=-1)


class ReluDropout(nn.Module):
    """ReLU, then dropout: [rows, width] -> the same shape; `fused` computes both in one pass.

    PyG's and DGL's layers use it too, so that all implementations have the same masks. The mask of
    a node is the same in every chunk: it depends on the node's number in the graph.
    """

    def __init__(self, name: str, p: float, *, fused: bool) -> None:
        super().__init__()
        self.name, self.p, self.fused = name, p, fused

    def forward(self, x: Tensor, context: Context) -> Tensor:
        mask = active_mask(self.name, self.p, self.training, context)
        rows = context.chunk.nodes[: len(x)]
        if self.fused:
            return relu_drop(x, rows, mask)
        active = functional.relu(x)
        return active if mask is None else drop(active, rows, mask)

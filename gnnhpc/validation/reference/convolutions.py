"""Graph convolutions: every message by itself, the products as the papers write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.convolutions import Convolutions, Gcn, Gin, GraphConv, Sage
from gnnhpc.validation.reference.forward_pass import (
    Activation,
    EdgeList,
    ForwardPass,
    gcn_weights,
    mean_divisor,
    product,
    sum_over_edges,
)
from gnnhpc.validation.reference.layer import (
    GraphPooling,
    Linear,
    LogSoftmax,
    Parameters,
    ReferenceLayer,
    ReluDropout,
    WithoutNorms,
    glorot,
    linear_values,
    relu,
)


@dataclass(frozen=True)
class GcnConv(WithoutNorms):
    """Kipf & Welling 2017, equation 2, self-loops included."""

    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """In single precision, as all convolutions; torch draws another weight first."""
        linear_values("lin", self.inputs, self.outputs, torch.float32, bias=False)
        weight = glorot(self.outputs, self.inputs)
        return {"lin.weight": weight.to(dtype), "bias": torch.zeros(self.outputs, dtype=dtype)}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        h = product(x, p["lin.weight"].T)
        return sum_over_edges(h, here.graph, gcn_weights(here.graph, h.dtype)) + p["bias"]


@dataclass(frozen=True)
class NeighborAndRoot(WithoutNorms):
    """W_n of the neighbours' sum or mean, plus a bias, plus W_r of the node itself.

    GraphConv (Morris et al. 2019) and GraphSAGE (Hamilton et al. 2017, algorithm 1).
    """

    inputs: int
    outputs: int
    neighbors: str
    root: str
    mean: bool

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = linear_values(self.neighbors, self.inputs, self.outputs, torch.float32)
        values |= linear_values(self.root, self.inputs, self.outputs, torch.float32, bias=False)
        return {name: value.to(dtype) for name, value in values.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        edges = here.graph.without_loops()
        h = product(x, p[f"{self.neighbors}.weight"].T)
        total = sum_over_edges(h, edges)
        if self.mean:
            total = total / mean_divisor(edges, h.dtype).clamp(min=1)[:, None]
        return total + p[f"{self.neighbors}.bias"] + product(x, p[f"{self.root}.weight"].T)


@dataclass(frozen=True)
class SageMax(WithoutNorms):
    """GraphSAGE with the largest of relu(W x + b), or of x: Hamilton et al. 2017, equation 3."""

    inputs: int
    outputs: int
    pool: bool

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        single = torch.float32
        values = linear_values("lin", self.inputs, self.inputs, single) if self.pool else {}
        values |= linear_values("lin_l", self.inputs, self.outputs, single)
        values |= linear_values("lin_r", self.inputs, self.outputs, single, bias=False)
        return {name: value.to(dtype) for name, value in values.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        values = x if isinstance(x, Tensor) else x.to_dense()
        if self.pool:
            values = relu(product(x, p["lin.weight"].T) + p["lin.bias"])
        best = largest_neighbor(values, here.graph.without_loops())
        return best @ p["lin_l.weight"].T + p["lin_l.bias"] + product(x, p["lin_r.weight"].T)


@dataclass(frozen=True)
class GinConv(WithoutNorms):
    """MLP(x + sum over neighbours): Xu et al. 2019, equation 4.1 with eps 0."""

    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = linear_values("nn.0", self.inputs, self.outputs, torch.float32)
        values |= linear_values("nn.2", self.outputs, self.outputs, torch.float32)
        return {name: value.to(dtype) for name, value in values.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        # The self-loop among the edges is the node itself.
        hidden = sum_over_edges(product(x, p["nn.0.weight"].T), here.graph) + p["nn.0.bias"]
        return relu(hidden) @ p["nn.2.weight"].T + p["nn.2.bias"]


def largest_neighbor(x: Tensor, edges: EdgeList) -> Tensor:
    """[nodes, D]: the largest entry of each node's neighbours, 0 for a node without any.

    The gradient goes to the first of equal entries, in the order of the edges.
    """
    source, target = edges.source, edges.target
    places = torch.arange(len(source))[:, None].expand(-1, x.shape[1])
    index = target[:, None].expand_as(places)
    best = torch.full_like(x, -torch.inf).scatter_reduce(0, index, x[source].detach(), "amax")
    holds_best = torch.where(x[source] == best[target], places, len(source))
    first = torch.full(x.shape, len(source)).scatter_reduce(0, index, holds_best, "amin")
    has_none = first == len(source)
    chosen = source[first.clamp(max=max(len(source) - 1, 0))] if len(source) else first
    return torch.where(has_none, 0.0, x.gather(0, torch.where(has_none, 0, chosen)))


def convolution_layer(model: Convolutions, spec: LayerSpec) -> ReferenceLayer:
    """One layer of a GCN, GraphSAGE, GIN or GraphConv, or of their readout of graphs."""
    inputs, outputs = spec.inputs[0], spec.shape[0]
    match spec.kind:
        case "pooling":
            return GraphPooling(model.pooling)
        case "linear":
            return Linear(inputs, outputs)
        case "relu_dropout":
            return ReluDropout(spec.name, model.dropout)
        case "log_softmax":
            return LogSoftmax()
    return _convolution(model, inputs, outputs)


def _convolution(model: Convolutions, inputs: int, outputs: int) -> ReferenceLayer:
    match model:
        case Gcn():
            return GcnConv(inputs, outputs)
        case Gin():
            return GinConv(inputs, outputs)
        case GraphConv():
            return NeighborAndRoot(inputs, outputs, "lin_rel", "lin_root", mean=False)
        case Sage(aggregator="mean"):
            return NeighborAndRoot(inputs, outputs, "lin_l", "lin_r", mean=True)
        case Sage():
            return SageMax(inputs, outputs, model.aggregator == "pool")
    raise ValueError(f"model {model.name} has no reference")

"""The layers of GAT and GATv2: the score, softmax and message of every edge by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.validation.reference.forward_pass import Activation, EdgeList, ForwardPass, product
from gnnhpc.validation.reference.layer import (
    Dropout,
    Elu,
    LogSoftmax,
    Parameters,
    ReferenceLayer,
    WithoutNorms,
    glorot,
    linear_values,
    mask,
)

SLOPE = 0.2
"""Of the leaky ReLU below zero, the papers' and PyG's default."""


@dataclass(frozen=True)
class _Heads(WithoutNorms):
    """Attention of several heads, concatenated or averaged."""

    name: str
    inputs: int
    heads: int
    channels: int
    average: bool
    dropout: float

    def combined(
        self, scores: Tensor, values: Tensor, p: Parameters, here: ForwardPass
    ) -> Activation:
        """The output for scores [E, heads] and values [nodes, heads, channels] of sources."""
        edges = here.graph
        coefficients = edge_softmax(scores, edges)
        if here.training and self.dropout:
            numbers = edges.number[:, None] * self.heads + torch.arange(self.heads)
            coefficients = coefficients * mask(here, self.name, self.dropout, numbers)
        messages = coefficients[..., None] * values[edges.source]
        out = torch.zeros_like(values).index_add(0, edges.target, messages)
        return (out.mean(1) if self.average else out.flatten(1)) + p["bias"]

    def split(self, x: Tensor) -> Tensor:
        return x.view(-1, self.heads, self.channels)

    def bias(self, dtype: torch.dtype) -> Tensor:
        width = self.channels if self.average else self.heads * self.channels
        return torch.zeros(width, dtype=dtype)


class GatAttention(_Heads):
    """Velickovic et al. 2018, equations 1 to 6, as PyG's GATConv computes them."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Glorot's values in single precision; PyG draws the weight twice, the second counts."""
        width = self.heads * self.channels
        glorot(width, self.inputs)
        return {
            "lin.weight": glorot(width, self.inputs).to(dtype),
            "att_src": glorot(1, self.heads, self.channels).to(dtype),
            "att_dst": glorot(1, self.heads, self.channels).to(dtype),
            "bias": self.bias(dtype),
        }

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        h = self.split(product(x, p["lin.weight"].T))
        of_source, of_target = (h * p["att_src"]).sum(-1), (h * p["att_dst"]).sum(-1)
        scores = of_source[here.graph.source] + of_target[here.graph.target]
        return self.combined(leaky_relu(scores), h, p, here)


class Gatv2Attention(_Heads):
    """Brody et al. 2022, equation 7, as PyG's GATv2Conv computes it."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Glorot's values in single precision, after those of two of torch's linear layers."""
        width = self.heads * self.channels
        values = {}
        for name in ("lin_l", "lin_r"):
            linear_values(name, self.inputs, width, torch.float32)
        for name in ("lin_l", "lin_r"):
            values[f"{name}.weight"] = glorot(width, self.inputs).to(dtype)
            values[f"{name}.bias"] = torch.zeros(width, dtype=dtype)
        values["att"] = glorot(1, self.heads, self.channels).to(dtype)
        return values | {"bias": self.bias(dtype)}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        source, target = (
            self.split(product(x, p[f"{name}.weight"].T) + p[f"{name}.bias"])
            for name in ("lin_l", "lin_r")
        )
        both = source[here.graph.source] + target[here.graph.target]
        return self.combined((leaky_relu(both) * p["att"]).sum(-1), source, p, here)


def leaky_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, SLOPE * x)


def edge_softmax(scores: Tensor, edges: EdgeList) -> Tensor:
    """The softmax of scores [E, heads] over the edges of each target."""
    peak = scores.new_full((edges.nodes, scores.shape[1]), -math.inf)
    index = edges.target[:, None].expand_as(scores)
    peak = peak.scatter_reduce(0, index, scores.detach(), "amax")
    raised = (scores - peak[edges.target]).exp()
    total = torch.zeros_like(peak).index_add(0, edges.target, raised)
    return raised / total[edges.target]


def attention_layer(model: Gat, spec: LayerSpec) -> ReferenceLayer:
    """One layer of a GAT or GATv2."""
    last = spec.number == model.layers - 1
    if spec.kind == "dropout":
        return Dropout(spec.name, model.dropout)
    if spec.kind == "attention":
        channels = spec.shape[0] if last else model.hidden
        kind = Gatv2Attention if isinstance(model, Gatv2) else GatAttention
        return kind(spec.name, spec.inputs[0], model.heads, channels, last, model.dropout)
    return LogSoftmax() if last else Elu()

"""The layers of deep graph networks: ResGCN and GCNII."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.deep_gcn import Deep, Gcnii
from gnnhpc.validation.reference.forward_pass import (
    Activation,
    ForwardPass,
    gcn_weights,
    product,
    sum_over_edges,
)
from gnnhpc.validation.reference.layer import (
    EPS,
    LogSoftmax,
    Parameters,
    ReferenceLayer,
    WithoutNorms,
    glorot,
    linear_values,
    norm_values,
    relu,
    relu_dropout,
)


@dataclass(frozen=True)
class Input(WithoutNorms):
    """W x + b; for GCNII h0 = relu(W x + b), with dropout and without, side by side."""

    name: str
    inputs: int
    hidden: int
    doubled: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = linear_values("lin", self.inputs, self.hidden, torch.float32)
        return {name: value.to(dtype) for name, value in values.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        out = product(x, p["lin.weight"].T) + p["lin.bias"]
        if not self.doubled:
            return out
        return torch.cat((relu_dropout(out, self.name, self.dropout, here), relu(out)), 1)


@dataclass(frozen=True)
class ResGcnBlock(WithoutNorms):
    """x + GCN(dropout(relu(norm(x)))): Li et al. 2020, section 3.2."""

    name: str
    hidden: int
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = norm_values("norm", self.hidden, dtype)
        linear_values("lin", self.hidden, self.hidden, torch.float32, bias=False)
        values["lin.weight"] = glorot(self.hidden, self.hidden).to(dtype)
        values["bias"] = torch.zeros(self.hidden, dtype=dtype)
        return values

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        active = norm_relu_dropout(x, p, self.name, self.dropout, here)
        return x + propagate(active @ p["lin.weight"].T, here) + p["bias"]


@dataclass(frozen=True)
class GcniiBlock(WithoutNorms):
    """Chen et al. 2020, equation 5, on [h | h0]."""

    name: str
    number: int
    hidden: int
    alpha: float
    theta: float
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"weight1": glorot(self.hidden, self.hidden).to(dtype)}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        h, first = x[:, : self.hidden], x[:, self.hidden :]
        beta = math.log(self.theta / (self.number + 1) + 1.0)
        total = (1.0 - self.alpha) * propagate(h, here) + self.alpha * first
        out = (1.0 - beta) * total + beta * (total @ p["weight1"])
        return torch.cat((relu_dropout(out, self.name, self.dropout, here), first), 1)


@dataclass(frozen=True)
class Readout(WithoutNorms):
    """A linear layer, after norm, ReLU and dropout, or of the first half of the columns."""

    name: str
    hidden: int
    outputs: int
    normed: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = norm_values("norm", self.hidden, dtype) if self.normed else {}
        drawn = linear_values("lin", self.hidden, self.outputs, torch.float32)
        return values | {name: value.to(dtype) for name, value in drawn.items()}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        h = x[:, : self.hidden]
        if self.normed:
            h = norm_relu_dropout(x, p, self.name, self.dropout, here)
        return h @ p["lin.weight"].T + p["lin.bias"]


def norm_relu_dropout(
    x: Tensor, p: Parameters, name: str, dropout: float, here: ForwardPass
) -> Tensor:
    """LayerNorm of each row (Ba et al. 2016), ReLU, and dropout in training."""
    mean = x.mean(1, keepdim=True)
    deviation = ((x - mean).square().mean(1, keepdim=True) + EPS).sqrt()
    normalised = (x - mean) / deviation * p["norm.weight"] + p["norm.bias"]
    return relu_dropout(normalised, name, dropout, here)


def propagate(h: Tensor, here: ForwardPass) -> Tensor:
    """The sum over each node's edges, weighted by 1 / sqrt(d_i d_j), self-loops included."""
    return sum_over_edges(h, here.graph, gcn_weights(here.graph, h.dtype))


def deep_layer(model: Deep, spec: LayerSpec) -> ReferenceLayer:
    """One layer of a deep network."""
    gcnii = isinstance(model, Gcnii)
    hidden, dropout = model.hidden, model.dropout
    if spec.kind == "input":
        return Input(spec.name, spec.inputs[0], hidden, gcnii, dropout)
    if spec.kind == "readout":
        return Readout(spec.name, hidden, spec.shape[0], not gcnii, dropout)
    if spec.kind == "log_softmax":
        return LogSoftmax()
    if isinstance(model, Gcnii):
        return GcniiBlock(spec.name, spec.number, hidden, model.alpha, model.theta, dropout)
    return ResGcnBlock(spec.name, hidden, dropout)

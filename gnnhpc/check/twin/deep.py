"""Deep graph networks in plain torch: every edge's message one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.twin.convolutions import relu, relu_dropout
from gnnhpc.check.twin.gat import LogSoftmax
from gnnhpc.check.twin.graph_sums import (
    glorot,
    graph_of,
    magnitude,
    normalised_weights,
    product,
    summed,
)
from gnnhpc.check.twin.layer import EPS, Parameters, TwinLayer, linear_values, norm_values
from gnnhpc.check.twin.scene import Scene, SparseInput
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.deep_gcn import Deep, Gcnii


@dataclass(frozen=True)
class InputTwin:
    """W x + b; for GCNII h0 = relu(W x + b), dropped out and as it is, side by side."""

    name: str
    inputs: int
    hidden: int
    doubled: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        drawn = linear_values("lin", self.inputs, self.hidden, torch.float32)
        return {name: value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        out = product(x, p["lin.weight"].T) + p["lin.bias"]
        reach = product(magnitude(x), p["lin.weight"].T.abs()) + p["lin.bias"].abs()
        scene.reach = reach.detach()
        if not self.doubled:
            return out
        first = relu(out, scene.reach, self.name, scene)
        active = relu_dropout(first, None, self.name, self.dropout, scene)
        return torch.cat((active, first), 1)


@dataclass(frozen=True)
class ResGcnTwin:
    """x + GCN(dropout(relu(norm(x)))); Li et al. 2020, section 3.2, Kipf & Welling's equation 2."""

    name: str
    hidden: int
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = norm_values("norm", self.hidden, dtype)
        linear_values("lin", self.hidden, self.hidden, torch.float32, bias=False)
        values["lin.weight"] = glorot(self.hidden, self.hidden).to(dtype)
        values["bias"] = torch.zeros(self.hidden, dtype=dtype)
        return values

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        active = normed_relu(x, p, self.name, self.dropout, scene)
        return x + propagated(active @ p["lin.weight"].T, scene) + p["bias"]


@dataclass(frozen=True)
class GcniiTwin:
    """Chen et al. 2020, equation 5, on [h | h0]."""

    name: str
    number: int
    hidden: int
    alpha: float
    theta: float
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"weight1": glorot(self.hidden, self.hidden).to(dtype)}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        h, first = x[:, : self.hidden], x[:, self.hidden :]
        beta = math.log(self.theta / (self.number + 1) + 1.0)

        def mapped(h: Tensor, weight: Tensor, first: Tensor) -> Tensor:
            total = (1.0 - self.alpha) * propagated(h, scene) + self.alpha * first
            return (1.0 - beta) * total + beta * (total @ weight)

        out = mapped(h, p["weight1"], first)
        reach = mapped(h.detach().abs(), p["weight1"].detach().abs(), first.detach().abs())
        return torch.cat((relu_dropout(out, reach, self.name, self.dropout, scene), first), 1)


@dataclass(frozen=True)
class ReadoutTwin:
    """A linear layer, after norm, ReLU and dropout or of the first half."""

    name: str
    hidden: int
    outputs: int
    normed: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = norm_values("norm", self.hidden, dtype) if self.normed else {}
        drawn = linear_values("lin", self.hidden, self.outputs, torch.float32)
        return values | {name: value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        given = x[:, : self.hidden]
        if self.normed:
            given = normed_relu(x, p, self.name, self.dropout, scene)
        return given @ p["lin.weight"].T + p["lin.bias"]


def normed_relu(x: Tensor, p: Parameters, name: str, dropout: float, scene: Scene) -> Tensor:
    """Ba et al. 2016 over each row, then ReLU and dropout."""
    mean = x.mean(1, keepdim=True)
    deviation = ((x - mean).square().mean(1, keepdim=True) + EPS).sqrt()
    out = (x - mean) / deviation * p["norm.weight"] + p["norm.bias"]
    with torch.no_grad():
        size = (x.abs() + x.abs().mean(1, keepdim=True)) / deviation
        reach = size * p["norm.weight"].abs() + p["norm.bias"].abs()
    return relu_dropout(out, reach, name, dropout, scene)


def propagated(h: Tensor, scene: Scene) -> Tensor:
    """Of each node the sum over its edges, weighted by 1 / sqrt(d_i d_j), self-loops included."""
    graph = graph_of(scene)
    return summed(h, graph, normalised_weights(graph, h.dtype))


def layer(model: Deep, outline: LayerSpec) -> TwinLayer:
    """One layer of a deep network in plain torch."""
    gcnii = isinstance(model, Gcnii)
    hidden, dropout = model.hidden, model.dropout
    if outline.kind == "input":
        return InputTwin(outline.name, outline.inputs[0], hidden, gcnii, dropout)
    if outline.kind == "readout":
        return ReadoutTwin(outline.name, hidden, outline.shape[0], not gcnii, dropout)
    if outline.kind == "log_softmax":
        return LogSoftmax()
    if isinstance(model, Gcnii):
        return GcniiTwin(outline.name, outline.number, hidden, model.alpha, model.theta, dropout)
    return ResGcnTwin(outline.name, hidden, dropout)

"""Convolutions in plain torch: every edge's message one by one, products as the papers write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.twin import readout
from gnnhpc.check.twin.gat import LogSoftmax
from gnnhpc.check.twin.graph_sums import (
    glorot,
    graph_of,
    magnitude,
    neighbours,
    normalised_weights,
    product,
    summed,
    without_loops,
)
from gnnhpc.check.twin.layer import Parameters, TwinLayer, WithoutParameters, linear_values
from gnnhpc.check.twin.scene import Kink, Scene, SparseInput
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.convolutions import Convolutions, Gcn, Gin, GraphConv, Sage
from gnnhpc.models.pooling import READOUT


@dataclass(frozen=True)
class GcnTwin:
    """Kipf & Welling 2017, equation 2, self-loops included."""

    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """In single precision, as all of them; torch's own draws for the weight come first."""
        linear_values("lin", self.inputs, self.outputs, torch.float32, bias=False)
        weight = glorot(self.outputs, self.inputs)
        return {"lin.weight": weight.to(dtype), "bias": torch.zeros(self.outputs, dtype=dtype)}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        graph = graph_of(scene)
        h = product(x, p["lin.weight"].T)
        weights = normalised_weights(graph, h.dtype)
        if scene.training:
            reach = product(magnitude(x), p["lin.weight"].T.abs())
            scene.reach = summed(reach, graph, weights).detach() + p["bias"].abs()
        return summed(h, graph, weights) + p["bias"]


@dataclass(frozen=True)
class RootTwin:
    """W_n of the neighbours' sum or mean, plus a bias, plus W_r of the node itself.

    Morris et al. 2019's GraphConv, and GraphSAGE (Hamilton et al. 2017, algorithm 1).
    """

    inputs: int
    outputs: int
    neighbours: str
    root: str
    mean: bool

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        drawn = linear_values(self.neighbours, self.inputs, self.outputs, torch.float32)
        drawn |= linear_values(self.root, self.inputs, self.outputs, torch.float32, bias=False)
        return {name: value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        if scene.training:
            size = {name: value.abs() for name, value in p.items()}
            scene.reach = self._sum(magnitude(x), size, scene).detach()
        return self._sum(x, p, scene)

    def _sum(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        graph = without_loops(graph_of(scene))
        h = product(x, p[f"{self.neighbours}.weight"].T)
        total = summed(h, graph)
        if self.mean:
            total = total / neighbours(graph, h.dtype).clamp(min=1)[:, None]
        own = product(x, p[f"{self.root}.weight"].T)
        return total + p[f"{self.neighbours}.bias"] + own


@dataclass(frozen=True)
class MaxTwin:
    """GraphSAGE with the largest of relu(W x + b), or of x: Hamilton et al. 2017, equation 3."""

    name: str
    inputs: int
    outputs: int
    pool: bool

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        single = torch.float32
        drawn = linear_values("lin", self.inputs, self.inputs, single) if self.pool else {}
        drawn |= linear_values("lin_l", self.inputs, self.outputs, single)
        drawn |= linear_values("lin_r", self.inputs, self.outputs, single, bias=False)
        return {name: value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        graph = without_loops(graph_of(scene))
        given = x if isinstance(x, Tensor) else x.to_dense()
        reach = given.detach().abs()
        if self.pool:
            given = product(x, p["lin.weight"].T) + p["lin.bias"]
            reach = product(magnitude(x), p["lin.weight"].T.abs()) + p["lin.bias"].abs()
            given = relu(given, reach.detach(), self.name, scene)
        best, second = _two_largest(given, graph.source, graph.target)
        if scene.training and best.requires_grad:
            widest = _largest(reach.detach(), graph.source, graph.target)[0]
            kink = Kink(self.name, second - best, widest, 0.0)
            kink.keep_arriving(best)
            scene.kinks.append(kink)
        out = best @ p["lin_l.weight"].T + p["lin_l.bias"] + product(x, p["lin_r.weight"].T)
        if scene.training:
            own = product(magnitude(x), p["lin_r.weight"].T.abs())
            around = best.abs() @ p["lin_l.weight"].T.abs() + p["lin_l.bias"].abs()
            scene.reach = (around + own).detach()
        return out


@dataclass(frozen=True)
class GinTwin:
    """MLP(x + sum over neighbours): Xu et al. 2019, equation 4.1 with eps 0."""

    name: str
    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        drawn = linear_values("nn.0", self.inputs, self.outputs, torch.float32)
        drawn |= linear_values("nn.2", self.outputs, self.outputs, torch.float32)
        return {name: value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        # The node itself is the self-loop that its edges have.
        graph = graph_of(scene)
        hidden = summed(product(x, p["nn.0.weight"].T), graph) + p["nn.0.bias"]
        around = product(magnitude(x), p["nn.0.weight"].T.abs())
        reach = summed(around, graph) + p["nn.0.bias"].abs()
        hidden = relu(hidden, reach.detach(), self.name, scene)
        if scene.training:
            scene.reach = (reach @ p["nn.2.weight"].T.abs() + p["nn.2.bias"].abs()).detach()
        return hidden @ p["nn.2.weight"].T + p["nn.2.bias"]


@dataclass(frozen=True)
class ReluDropoutTwin(WithoutParameters):
    name: str
    p: float

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        return relu_dropout(x, scene.reach, self.name, self.p, scene)


def relu(x: Tensor, reach: Tensor | None, name: str, scene: Scene) -> Tensor:
    """`reach` as a Kink has it; None for what is no kink, as it cannot be below zero."""
    out = torch.where(x > 0, x, torch.zeros_like(x))
    if scene.training and reach is not None:
        kink = Kink(name, x, reach, 0.0)
        kink.keep_arriving(out)
        scene.kinks.append(kink)
    return out


def relu_dropout(x: Tensor, reach: Tensor | None, name: str, p: float, scene: Scene) -> Tensor:
    out = relu(x, reach, name, scene)
    if not scene.training or not p:
        return out
    kept = plain_weights(scene.seed, scene.step, name, p, scene.numbers(x).numpy())
    return out * torch.from_numpy(kept).to(x.dtype)


def layer(model: Convolutions, outline: LayerSpec) -> TwinLayer:
    inputs, outputs = outline.inputs[0], outline.shape[0]
    if outline.name.startswith(READOUT):
        return readout.layer(model.pooling, outline)
    if outline.kind == "relu_dropout":
        return ReluDropoutTwin(outline.name, model.dropout)
    if outline.kind == "log_softmax":
        return LogSoftmax()
    match model:
        case Gcn():
            twin: TwinLayer = GcnTwin(inputs, outputs)
        case Gin():
            twin = GinTwin(outline.name, inputs, outputs)
        case GraphConv():
            twin = RootTwin(inputs, outputs, "lin_rel", "lin_root", mean=False)
        case Sage(aggregator="mean"):
            twin = RootTwin(inputs, outputs, "lin_l", "lin_r", mean=True)
        case Sage():
            twin = MaxTwin(outline.name, inputs, outputs, model.aggregator == "pool")
        case _:
            raise ValueError(f"{outline.name}: no twin of {model.name}")
    return twin


def _largest(x: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Of each node the largest of its neighbours' numbers, 0 without; and the edge it is of.

    The first of several, in the order of the edges; [nodes, D] each, -1 without neighbours.
    """
    edges = torch.arange(len(source))[:, None].expand(-1, x.shape[1])
    index = target[:, None].expand_as(edges)
    best = torch.full_like(x, -torch.inf).scatter_reduce(0, index, x[source].detach(), "amax")
    holds = torch.where(x[source] == best[target], edges, len(source))
    first = torch.full(x.shape, len(source)).scatter_reduce(0, index, holds, "amin")
    none = first == len(source)
    chosen = source[first.clamp(max=max(len(source) - 1, 0))] if len(source) else first
    return torch.where(none, 0.0, x.gather(0, torch.where(none, 0, chosen))), first


def _two_largest(x: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each node's neighbours, and the largest that is less, -inf without one.

    Equal ones are so in every precision, and the first of them counts.
    """
    best, _ = _largest(x, source, target)
    others = torch.where(x[source] < best[target], x[source], -torch.inf)
    index = target[:, None].expand_as(others)
    second = torch.full_like(x, -torch.inf).scatter_reduce(0, index, others, "amax")
    return best, second

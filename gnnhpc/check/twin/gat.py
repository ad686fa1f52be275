"""GAT's layers in plain torch: every edge's score, softmax and message one by one."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.twin.backward_rounding import log_softmax
from gnnhpc.check.twin.graph_sums import glorot, graph_of, magnitude, product
from gnnhpc.check.twin.layer import Parameters, WithoutParameters
from gnnhpc.check.twin.scene import Kink, Scene, SparseInput, TwinGraph

SLOPE = 0.2
"""Of the leaky ReLU, PyG's default and the paper's."""


@dataclass(frozen=True)
class Attention:
    """Velickovic et al. 2018, equations 1 to 6, as PyG's GATConv computes them."""

    name: str
    inputs: int
    heads: int
    channels: int
    average: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Glorot's, in single precision; PyG draws the weight twice and keeps the second."""
        width = self.heads * self.channels
        glorot(width, self.inputs)
        return {
            "lin.weight": glorot(width, self.inputs).to(dtype),
            "att_src": glorot(1, self.heads, self.channels).to(dtype),
            "att_dst": glorot(1, self.heads, self.channels).to(dtype),
            "bias": torch.zeros(self.channels if self.average else width, dtype=dtype),
        }

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        graph = graph_of(scene)
        weight = p["lin.weight"].T
        h = product(x, weight).view(graph.nodes, self.heads, self.channels)
        to, into = (h * p["att_src"]).sum(-1), (h * p["att_dst"]).sum(-1)
        scores = to[graph.source] + into[graph.target]
        activated = torch.where(scores > 0, scores, SLOPE * scores)
        if scene.training:
            kink = Kink(self.name, scores, self._reach(x, p, graph), SLOPE)
            kink.keep_arriving(activated)
            scene.kinks.append(kink)
        coefficients = softmax(activated, graph)
        if scene.training and self.dropout:
            numbers = graph.number[:, None] * self.heads + torch.arange(self.heads)
            weights = kept(scene, self.name, self.dropout, numbers, h.dtype)
            coefficients = coefficients * weights
        messages = coefficients[..., None] * h[graph.source]
        out = torch.zeros_like(h).index_add(0, graph.target, messages)
        return (out.mean(1) if self.average else out.flatten(1)) + p["bias"]

    @torch.no_grad()
    def _reach(self, x: Tensor | SparseInput, p: Parameters, graph: TwinGraph) -> Tensor:
        h = product(magnitude(x), p["lin.weight"].T.abs())
        h = h.view(graph.nodes, self.heads, self.channels)
        to, into = (h * p["att_src"].abs()).sum(-1), (h * p["att_dst"].abs()).sum(-1)
        return to[graph.source] + into[graph.target]


@dataclass(frozen=True)
class Dropout(WithoutParameters):
    """Dropout of activations [nodes, width], or of stored features."""

    name: str
    p: float

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor | SparseInput:
        if not scene.training or not self.p:
            return x
        dtype = x.value.dtype if isinstance(x, SparseInput) else x.dtype
        weights = kept(scene, self.name, self.p, scene.numbers(x), dtype)
        if isinstance(x, SparseInput):
            return dataclasses.replace(x, value=x.value * weights)
        return x * weights


@dataclass(frozen=True)
class Elu(WithoutParameters):
    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        return torch.where(x > 0, x, torch.expm1(x.clamp(max=0.0)))


@dataclass(frozen=True)
class LogSoftmax(WithoutParameters):
    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        return log_softmax(x, scene.rounding)


def kept(scene: Scene, layer: str, p: float, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies entries by, of the shape of their `numbers` in the whole graph."""
    weights = plain_weights(scene.seed, scene.step, layer, p, numbers.numpy())
    return torch.from_numpy(weights).to(dtype)


def softmax(scores: Tensor, graph: TwinGraph) -> Tensor:
    """Over the edges of each target, for each head."""
    peak = scores.new_full((graph.nodes, scores.shape[1]), -math.inf)
    index = graph.target[:, None].expand_as(scores)
    peak = peak.scatter_reduce(0, index, scores.detach(), "amax")
    raised = (scores - peak[graph.target]).exp()
    total = torch.zeros_like(peak).index_add(0, graph.target, raised)
    return raised / total[graph.target]

"""What layer forms share: the settings of a forward pass, normalisation, dropout, activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.validation.reference.dropout_rule import MasksByRule
from gnnhpc.validation.reference.edge_lists import Activation, EdgeList

EPS = 1e-5
"""Added to variances under a square root, torch's default."""
SLOPE = 0.2
"""Slope of the leaky ReLU below zero, the default of the papers and PyG."""
Parameters = Mapping[str, Tensor]


@dataclass
class RunningStatistics:
    """The running statistics of one BatchNorm on one replica."""

    mean: Tensor
    variance: Tensor
    batches: int = 0
    pending: list[tuple[Tensor, Tensor, int]] = field(default_factory=list)
    """Mean, biased variance and rows of micro-batches that have not moved the statistics yet."""

    def move(self, momentum: float = 0.1) -> None:
        """Move towards the statistics of all pending rows together."""
        if not self.pending:
            return
        rows = sum(count for _, _, count in self.pending)
        mean = torch.stack([m * n for m, _, n in self.pending]).sum(0) / rows
        squares = [(v + (m - mean).square()) * n for m, v, n in self.pending]
        unbiased = torch.stack(squares).sum(0) / (rows - 1)
        self.mean = (1 - momentum) * self.mean + momentum * mean
        self.variance = (1 - momentum) * self.variance + momentum * unbiased
        self.batches += 1
        self.pending.clear()

    def buffers(self, name: str) -> dict[str, Tensor]:
        """The buffers of the BatchNorm `name`, by full name."""
        return {
            f"{name}.running_mean": self.mean,
            f"{name}.running_var": self.variance,
            f"{name}.num_batches_tracked": torch.tensor(float(self.batches)),
        }


def statistics_of(buffers: Mapping[str, Tensor]) -> dict[str, RunningStatistics]:
    """The statistics that buffers hold, by the full name of their BatchNorm."""
    names = [key.removesuffix(".running_mean") for key in buffers if key.endswith(".running_mean")]
    return {
        name: RunningStatistics(
            buffers[f"{name}.running_mean"],
            buffers[f"{name}.running_var"],
            int(buffers[f"{name}.num_batches_tracked"]),
        )
        for name in names
    }


def parameters_of_layer(parameters: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """The parameters of one layer, by their name in it."""
    start = f"{layer}."
    return {n.removeprefix(start): p for n, p in parameters.items() if n.startswith(start)}


@dataclass
class ForwardPass:
    """The settings of one forward pass of one micro-batch."""

    step: int
    seed: int
    training: bool
    deferred: bool
    """Whether running statistics move once a mini-batch."""
    statistics: dict[str, RunningStatistics]
    """This replica's, by the name of the BatchNorm."""
    edges: EdgeList | None = None
    ids: Tensor | None = None
    """int64 [rows]: the node of each row of a graph; None for images."""
    graph_of_row: Tensor | None = None
    """int64 [rows]: the place of each node's graph among many small graphs."""
    graphs: int = 0
    """The number of small graphs."""
    side: int = 0
    """Pixels of the side of a square image."""

    @property
    def graph(self) -> EdgeList:
        """The edges; ValueError for data without any."""
        if self.edges is None:
            raise ValueError("this micro-batch has no edges")
        return self.edges

    def mask(self, layer: str, p: float, numbers: Tensor) -> Tensor:
        """float64, the factors of a layer's dropout for entries with these numbers: 0 or
        1 / (1 - p)."""
        rule = MasksByRule(self.step, True).mask(self.seed, layer, p)
        assert rule is not None
        return rule.weights(numbers, torch.float64)

    def entry_numbers(self, x: Activation) -> Tensor:
        """int64, the number of each entry of `x` in the whole graph, which dropout masks follow."""
        if isinstance(x, SparseRows):
            return x.entries
        if self.ids is None:
            return torch.arange(x.numel()).view_as(x)
        return self.ids[: len(x), None] * x.shape[1] + torch.arange(x.shape[1])


def batch_norm(x: Tensor, p: Parameters, layer: str, name: str, here: ForwardPass) -> Tensor:
    """Ioffe & Szegedy 2015 over the rows of [rows, channels]; moves the running statistics."""
    statistics = here.statistics[f"{layer}.{name}"]
    mean, variance = statistics.mean, statistics.variance
    if here.training:
        mean = x.mean(0)
        variance = (x - mean).square().mean(0)
        statistics.pending.append((mean.detach(), variance.detach(), len(x)))
        if not here.deferred:
            statistics.move()
    return (x - mean) / (variance + EPS).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def dropout(
    layer: str, share: float, x: Activation, p: Parameters, here: ForwardPass
) -> Activation:
    """Dropout of activations [nodes, width], or of the stored values of features."""
    if not here.training or not share:
        return x
    factors = here.mask(layer, share, here.entry_numbers(x))
    return x.with_values(x.values * factors) if isinstance(x, SparseRows) else x * factors


def relu_dropout(layer: str, share: float, x: Tensor, here: ForwardPass) -> Tensor:
    out = relu(x)
    return out * here.mask(layer, share, here.entry_numbers(x)) if here.training and share else out


def relu_dropout_layer(
    layer: str, share: float, x: Activation, p: Parameters, here: ForwardPass
) -> Activation:
    assert isinstance(x, Tensor)
    return relu_dropout(layer, share, x, here)


def pool(x: Activation, p: Parameters, here: ForwardPass, *, mean: bool) -> Activation:
    """The sum or mean of the rows of each small graph."""
    assert isinstance(x, Tensor)
    assert here.graph_of_row is not None
    total = x.new_zeros(here.graphs, x.shape[1]).index_add(0, here.graph_of_row, x)
    counts = torch.bincount(here.graph_of_row, minlength=here.graphs)[:, None]
    return total / counts.to(x.dtype) if mean else total


def linear(prefix: str, x: Activation, p: Parameters, here: ForwardPass | None = None) -> Tensor:
    assert isinstance(x, Tensor)
    out = x @ p[f"{prefix}weight"].T
    return out + p[f"{prefix}bias"] if f"{prefix}bias" in p else out


def log_softmax_layer(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
    assert isinstance(x, Tensor)
    return log_softmax(x)


def log_softmax(x: Tensor) -> Tensor:
    """The logarithm of each row's softmax."""
    return x - x.logsumexp(1, keepdim=True)


def elu(x: Activation, p: Parameters, here: ForwardPass) -> Activation:
    assert isinstance(x, Tensor)
    return torch.where(x > 0, x, torch.expm1(x.clamp(max=0.0)))


def gelu(x: Tensor) -> Tensor:
    """Hendrycks & Gimpel 2016: x times the normal distribution function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def leaky_relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, SLOPE * x)


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))

"""What the twin's layers work on besides their input, and the statistics they keep."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnnhpc.check.twin.backward_rounding import BackwardRounding


@dataclass(frozen=True)
class TwinGraph:
    """A whole graph with one self-loop a node; edges that chunks lose are left out."""

    nodes: int
    source: Tensor
    """int64 [E]"""
    target: Tensor
    """int64 [E]"""
    number: Tensor
    """int64 [E]: each edge's number in the full graph; a self-loop's is edges + node."""
    left_out: Tensor | None = None
    """int64 [nodes]: of a part of a graph, how many edges into each node are not in it."""
    sampled: bool = False
    """Whether edges were left out by drawing others of the same node."""


@dataclass(frozen=True)
class SparseInput:
    """Features as stored: one row, column and value a stored number, in the order of their rows."""

    row: Tensor
    column: Tensor
    value: Tensor
    """float64 [stored]"""
    shape: tuple[int, int]
    number: Tensor | None = None
    """int64 [stored]: of each its number in the whole graph; None where they are in order."""

    def to_dense(self) -> Tensor:
        places = torch.stack((self.row, self.column))
        return torch.sparse_coo_tensor(
            places, self.value, self.shape, check_invariants=False
        ).to_dense()


@dataclass
class RunningStatistics:
    """One BatchNorm's running statistics on one replica."""

    mean: Tensor
    variance: Tensor
    batches: int = 0
    pending: list[tuple[Tensor, Tensor, int]] = field(default_factory=list)
    """Mean, biased variance and rows of micro-batches that have not moved the statistics yet."""


@dataclass
class Kink:
    """Numbers whose sign chooses a slope, where a rounding error can choose the other one.

    The scores before an attention's leaky ReLU, or what goes into a ReLU. A maximum is one too: of
    a and b it is a, plus the ReLU of b - a.
    """

    layer: str
    scores: Tensor
    """float64, part of the autograd graph."""
    reach: Tensor
    """The sum of the magnitudes that each score is the sum of; its rounding is a share of that."""
    below: float
    """The slope for scores of 0 and less; above it is 1."""
    arriving: Tensor | None = None
    """The loss's gradient with respect to what the slopes are chosen for, once backward has run."""

    def keep_arriving(self, activated: Tensor) -> None:
        """Keep the gradient that arrives at an output of the scores' shape."""
        activated.register_hook(lambda gradient: setattr(self, "arriving", gradient.detach()))


@dataclass
class Scene:
    """One forward pass: which step, whether in training, and on what."""

    step: int
    seed: int
    training: bool
    deferred: bool
    """Whether running statistics move once a mini-batch."""
    statistics: dict[str, RunningStatistics]
    """By BatchNorm's name; this replica's."""
    graph: TwinGraph | None = None
    ids: Tensor | None = None
    """int64 [rows]: of a graph's rows the nodes; None for images."""
    pooled: Tensor | None = None
    """int64 [rows]: of nodes of many graphs the place of each one's among the graphs."""
    graphs: int = 0
    """How many graphs the rows are of."""
    side: int = 0
    """Of a square image's pixel grid."""
    kinks: list[Kink] = field(default_factory=list)
    reach: Tensor | None = None
    """The sum of the magnitudes that each output of the layer before is made of; None untold."""
    plain_means: bool = False
    """Whether the run's BatchNorms are torch's own, which add rows one after another."""
    rounding: BackwardRounding | None = None
    """What is added to gradients; None for nothing."""

    def numbers(self, x: Tensor | SparseInput) -> Tensor:
        """int64, of each number in `x` its own in the whole graph: masks of dropout follow it."""
        if isinstance(x, SparseInput):
            return torch.arange(len(x.value)) if x.number is None else x.number
        if self.ids is None:
            return torch.arange(x.numel()).view_as(x)
        width = x.shape[1]
        return self.ids[:, None] * width + torch.arange(width)

"""The twin's training step and evaluation, from given parameters, and all that they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.check.twin.backward_rounding import BackwardRounding, log_softmax
from gnnhpc.check.twin.link_pieces import pair_losses, pair_scores
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.scene import Kink, SparseInput
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import OutputKind

Array = npt.NDArray[np.float64]
Activations = Sequence[Tensor | SparseInput]


class TwinModel(Protocol):
    """A model in one process, in plain torch or a user's own."""

    names: list[str]
    """Of the layers, first to last."""
    frozen: frozenset[str]
    """Parameters that do not train."""
    dtype: torch.dtype
    kinks: list[Kink]

    def copied(self) -> Self | None:
        """One whose forwards move nothing of this one; None where there can be none."""
        ...

    def initial(self) -> dict[str, Tensor]:
        """The parameters' initial values, by full name, in the run's precision."""
        ...

    def forward(
        self,
        piece: Piece,
        parameters: Mapping[str, Tensor],
        step: int,
        *,
        training: bool,
        rounding: BackwardRounding | None = None,
    ) -> Activations: ...

    def end_minibatch(self) -> None: ...

    def average_statistics(self) -> None: ...

    def restore(
        self, replica: int, state: Mapping[str, Array], kinds: Mapping[str, torch.dtype]
    ) -> None:
        """Take one replica's buffers from what a run holds; of those without a kind of number the
        twin's own stays."""
        ...

    def buffers(self, replica: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class TwinStep:
    """One training step: what every piece computed, the mean loss, the gradients."""

    activations: list[Activations]
    """Of each piece, the output of each layer."""
    loss: float
    row_losses: list[tuple[Array, int]]
    """Of each piece, every row's loss, 0 where it is not labelled, and how many are."""
    gradients: dict[str, Array]
    parameters: dict[str, Tensor]
    """Those of the autograd graph, which is kept for what kinks need."""
    kinks: list[Kink]
    largest_score: float
    """Of the last layer's outputs, the largest magnitude."""
    buffers: Mapping[int, Mapping[str, Tensor]]
    """Of each replica, as the step left them."""


def train_step(
    model: TwinModel,
    pieces: Sequence[Piece],
    parameters: Mapping[str, Array],
    step: int,
    outputs: OutputKind,
    rounding: BackwardRounding | None = None,
) -> TwinStep:
    """The mean loss over the labelled rows of all pieces, and its gradients, `rounding` added."""
    leaves = {
        name: torch.from_numpy(value).to(model.dtype).requires_grad_(name not in model.frozen)
        for name, value in parameters.items()
    }
    trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    activations: list[Activations] = []
    row_losses: list[tuple[Array, int]] = []
    kinks: list[Kink] = []
    total, largest_score = torch.zeros((), dtype=torch.float64), 0.0
    for piece in pieces:
        found = model.forward(piece, leaves, step, training=True, rounding=rounding)
        kinks += model.kinks
        scores = found[-1]
        assert isinstance(scores, Tensor)
        target = piece.targets["train"]
        judged = scores
        if outputs == "embeddings":
            judged = pair_scores(scores, target)
        if judged.numel():
            largest_score = max(largest_score, float(judged.detach().abs().max()))
        rows = losses(scores, target, outputs, rounding)
        labelled = len(target) if outputs == "embeddings" else int((target != IGNORED).sum())
        row_losses.append((_array(rows), labelled))
        total = total + rows.sum()
        activations.append([_detached(each) for each in found])
    model.end_minibatch()
    loss = total / sum(labelled for _, labelled in row_losses)
    if trained:
        # And not `torch.autograd.grad`, which torch's reentrant checkpoint refuses.
        loss.backward(retain_graph=bool(kinks))
    return TwinStep(
        activations,
        float(loss.detach()),
        row_losses,
        {n: _array(leaf.grad) for n, leaf in trained.items() if leaf.grad is not None},
        trained,
        kinks,
        largest_score,
        {replica: model.buffers(replica) for replica in {piece.replica for piece in pieces}},
    )


@torch.no_grad()
def evaluate(
    model: TwinModel, pieces: Sequence[Piece], parameters: Mapping[str, Array], step: int
) -> list[Activations]:
    """Every piece's activations; running statistics are averaged over replicas first."""
    model.average_statistics()
    values = {n: torch.from_numpy(value).to(model.dtype) for n, value in parameters.items()}
    return [model.forward(piece, values, step, training=False) for piece in pieces]


def losses(
    output: Tensor, target: Tensor, outputs: OutputKind, rounding: BackwardRounding | None = None
) -> Tensor:
    """Each row's cross-entropy, float64 [rows], 0 for one that is not labelled; or each pair's."""
    if outputs == "embeddings":
        return pair_losses(output, target, rounding)
    scores = output.double()
    if outputs == "logits":
        scores = log_softmax(scores, rounding)
    labelled = target != IGNORED
    chosen = scores[torch.arange(len(target)), target.where(labelled, 0)]
    return torch.where(labelled, -chosen, 0.0)


def _detached(x: Tensor | SparseInput) -> Tensor | SparseInput:
    return x.detach() if isinstance(x, Tensor) else x


def _array(gradient: Tensor) -> Array:
    found: Array = gradient.detach().to_dense().double().numpy()
    return found

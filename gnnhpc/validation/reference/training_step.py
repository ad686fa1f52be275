"""The reference's training step and evaluation from given parameters, and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.sampling import Links
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import OutputKind
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers
from gnnhpc.validation.reference.optimizer_rule import Array

EPS = 2.0**-52


@dataclass(frozen=True)
class ReferenceStep:
    """One training step: the outputs of all layers, the mean loss, the gradients."""

    activations: list[Sequence[Tensor]]
    """For each batch the output of each layer."""
    loss: float
    gradients: dict[str, Array]
    largest_score: float
    """The largest magnitude of what the loss is computed from."""
    rounding: float
    """What float64 may lose of the loss's gradient, relative to it: see `gradient_rounding`."""


def train_step(
    model: FreshLayers,
    batches: Sequence[ReferenceBatch],
    parameters: Mapping[str, Array],
    outputs: OutputKind,
) -> ReferenceStep:
    """The mean loss over the rows of all batches that count, and its gradients."""
    model.load(parameters)
    activations: list[Sequence[Tensor]] = []
    total, counted, largest, remaining = 0.0, 0, 0.0, 0.0
    for batch in batches:
        computed = model.forward(batch, training=True)
        scores, target = scored(computed[-1], batch.targets["train"], outputs)
        rows = losses(scores, target, outputs)
        counted += len(target) if outputs == "embeddings" else int((target != IGNORED).sum())
        total += float(rows.detach().sum())
        if rows.requires_grad:
            # At once, so that the activations of one batch are held at a time.
            rows.sum().backward()
        activations.append([x.detach() for x in computed])
        if scores.numel():
            largest = max(largest, float(scores.detach().abs().max()))
        remaining += float((1.0 - (-rows.detach()).exp()).square().sum())
    model.end_minibatch()
    return ReferenceStep(
        activations,
        total / counted,
        {name: gradient / counted for name, gradient in model.gradients().items()},
        largest,
        gradient_rounding(remaining, counted, largest),
    )


def gradient_rounding(remaining: float, counted: int, largest_score: float) -> float:
    """What float64 may lose of the gradient of a cross-entropy, relative to the gradient.

    The gradient at a label is p - 1, and p comes from scores, of which each is off by a rounding of
    the largest one. `remaining` is the sum of (1 - p)^2 over the rows: where the loss is 1e-7 a row
    and scores are 20, a rounding of 4e-15 is 4e-8 of the gradient.
    """
    lost = 8.0 * EPS * max(1.0, largest_score)
    return lost * math.sqrt(counted / remaining) if remaining else math.inf


@torch.no_grad()
def evaluate(
    model: FreshLayers,
    batches: Sequence[ReferenceBatch],
    parameters: Mapping[str, Array],
) -> list[Sequence[Tensor]]:
    """The output of each layer for every batch; averages running statistics over replicas first."""
    model.load(parameters)
    model.average_statistics()
    return [model.forward(batch, training=False) for batch in batches]


def scored(output: Tensor, target: Tensor, outputs: OutputKind) -> tuple[Tensor, Tensor]:
    """What the loss is computed from, and the target of each of its rows.

    Of embeddings that is the product of each pair's two rows, [pairs].
    """
    if outputs != "embeddings":
        return output.double(), target
    return pair_scores(output, target), target[:, 2]


def pair_scores(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """float64 [n]: the products of two rows each."""
    one, other, _ = pairs.unbind(1)
    return torch.einsum("nk,nk->n", embeddings.double()[one], embeddings.double()[other])


def losses(scores: Tensor, target: Tensor, outputs: OutputKind) -> Tensor:
    """The cross-entropy of each row, float64 [rows], 0 for a row that does not count."""
    if outputs == "embeddings":
        return torch.logaddexp(torch.zeros_like(scores), scores) - target.double() * scores
    if outputs == "logits":
        scores = scores - scores.logsumexp(1, keepdim=True)
    counts = target != IGNORED
    chosen = scores[torch.arange(len(target)), target.where(counts, 0)]
    return torch.where(counts, -chosen, 0.0)


def classification_metrics(
    phase: Phase,
    outputs: Sequence[Tensor],
    targets: Sequence[Mapping[str, Tensor]],
    kind: OutputKind,
) -> dict[str, float]:
    """The reported metrics of a step, from the outputs and targets of all micro-batches."""
    total, shares = 0.0, {split: [0, 0] for split in targets[0]}
    for output, by_split in zip(outputs, targets, strict=True):
        total += float(losses(output.double(), by_split[phase], kind).sum())
        for split, target in by_split.items():
            right = (output.argmax(1) == target) & (target != IGNORED)
            shares[split][0] += int(right.sum())
            shares[split][1] += int((target != IGNORED).sum())
    accuracy = {s: right / count for s, (right, count) in shares.items() if count}
    found = {}
    if phase in accuracy:
        found = {"loss": total / shares[phase][1], "accuracy": accuracy[phase]}
    if "val" in shares:
        found |= {f"{split}_accuracy": value for split, value in accuracy.items()}
    return found


def link_metrics(
    phase: Phase, outputs: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]], task: Links
) -> dict[str, float]:
    """The reported metrics of links: means over the links of each split.

    `auc` is the share of the negatives that a link's score is above, ties counting half; `mrr` is
    1 / (1 + negatives above + half of those equal), `hits@k` whether fewer than k are above or
    equal. In evaluation the loss is half of a link's and half of the negatives' mean.
    """
    if phase == "train":
        rows = torch.cat(
            [
                losses(pair_scores(o, t["train"]), t["train"][:, 2], "embeddings")
                for o, t in zip(outputs, targets, strict=True)
            ]
        )
        return {"loss": float(rows.mean())}
    found: dict[str, float] = {}
    for split in ("val", "test"):
        ranks: list[tuple[float, float, float, float]] = []
        for output, by_split in zip(outputs, targets, strict=True):
            pairs = by_split[split]
            scores, is_link = pair_scores(output, pairs), pairs[:, 2] == 1
            negatives = scores[~is_link].numpy()
            of_negatives = float(np.logaddexp(0.0, negatives).mean())
            for score in scores[is_link].tolist():
                above, equal = int((negatives > score).sum()), int((negatives == score).sum())
                ranks.append(
                    (
                        (len(negatives) - above - equal / 2) / len(negatives),
                        1.0 / (1.0 + above + equal / 2),
                        float(above + equal < task.hits),
                        (float(np.logaddexp(0.0, -score)) + of_negatives) / 2,
                    )
                )
        auc, mrr, hits, loss = np.mean(ranks, axis=0).tolist()
        found |= {f"{split}_auc": auc, f"{split}_mrr": mrr, f"{split}_{task.hits_name}": hits}
        if split == phase:
            found["loss"] = loss
    return found

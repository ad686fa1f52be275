"""The reference's training step and evaluation: loss, gradients, metrics, moves of parameters.

Moves follow the published rules. Adam: Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1, with weight
decay added to the gradient; AdamW: Loshchilov & Hutter 2019 (arXiv:1711.05101), algorithm 2, whose
weight decay is multiplied by the learning rate, as torch's is; SGD with momentum: Sutskever et al.
2013, in torch's form. An optimizer that is added brings its own rule
(`OptimizerConfig.reference_move`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.sampling import Links
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import OutputKind
from gnnhpc.optimizers.optimizer import OptimizerConfig
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import Array, ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers

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
        target = batch.targets["train"]
        rows, scores = losses(computed[-1], target, outputs)
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


def pair_scores(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """float64 [n]: the products of two rows each."""
    one, other, _ = pairs.unbind(1)
    return torch.einsum("nk,nk->n", embeddings.double()[one], embeddings.double()[other])


def losses(output: Tensor, target: Tensor, outputs: OutputKind) -> tuple[Tensor, Tensor]:
    """The cross-entropy of each row, float64 [rows], 0 for a row that does not count; and the
    scores that it is computed from. Those of embeddings are the products of each pair's rows."""
    if outputs == "embeddings":
        scores, is_link = pair_scores(output, target), target[:, 2].double()
        return torch.logaddexp(torch.zeros_like(scores), scores) - is_link * scores, scores
    scores = logarithms = output.double()
    if outputs == "logits":
        logarithms = scores - scores.logsumexp(1, keepdim=True)
    counts = target != IGNORED
    chosen = logarithms[torch.arange(len(target)), target.where(counts, 0)]
    return torch.where(counts, -chosen, 0.0), scores


def classification_metrics(
    phase: Phase,
    outputs: Sequence[Tensor],
    targets: Sequence[Mapping[str, Tensor]],
    kind: OutputKind,
) -> dict[str, float]:
    """The reported metrics of a step, from the outputs and targets of all micro-batches."""
    total, shares = 0.0, {split: [0, 0] for split in targets[0]}
    for output, by_split in zip(outputs, targets, strict=True):
        total += float(losses(output, by_split[phase], kind)[0].sum())
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
        both = zip(outputs, targets, strict=True)
        rows = [losses(output, target["train"], "embeddings")[0] for output, target in both]
        return {"loss": float(torch.cat(rows).mean())}
    found: dict[str, float] = {}
    for split in ("val", "test"):
        ranks = []
        for output, by_split in zip(outputs, targets, strict=True):
            pairs = by_split[split]
            scores, is_link = pair_scores(output, pairs).numpy(), pairs[:, 2].numpy() == 1
            links, negatives = scores[is_link, None], scores[~is_link]
            above, equal = (negatives > links).sum(1), (negatives == links).sum(1)
            of_links, of_negatives = (np.logaddexp(0.0, x) for x in (-links[:, 0], negatives))
            of_each = (
                (len(negatives) - above - equal / 2) / len(negatives),
                1.0 / (1.0 + above + equal / 2),
                above + equal < task.hits,
                (of_links + of_negatives.mean()) / 2,
            )
            ranks.append(np.stack(of_each, 1))
        auc, mrr, hits, loss = np.concatenate(ranks).mean(0).tolist()
        found |= {f"{split}_auc": auc, f"{split}_mrr": mrr, f"{split}_hits@{task.hits}": hits}
        if split == phase:
            found["loss"] = loss
    return found


State = dict[str, Array]
"""What an optimizer keeps of one parameter between steps, by torch's names."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass
class OptimizerRule:
    """The moves of one replica's parameters, and what is kept between steps."""

    config: OptimizerConfig
    total: int
    """Training steps of the run, which learning-rate schedules need."""
    states: dict[str, State] = field(default_factory=dict)
    """By parameter; a parameter without any has taken no step yet."""

    def step(
        self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], step: int
    ) -> dict[str, Array]:
        """The change of each parameter in training step `step`; 0 for one without a gradient."""
        lr = self.config.lr_at(step, self.total)
        return {
            name: self._move(name, value, gradients[name], lr)
            if name in gradients
            else np.zeros_like(value)
            for name, value in parameters.items()
        }

    def _move(self, name: str, value: Array, gradient: Array, lr: float) -> Array:
        state, decay = self.states.setdefault(name, {}), self.config.weight_decay
        match self.config.name:
            case "adam":
                return -lr * _adam(gradient + decay * value, state)
            case "adamw":
                return -lr * decay * value - lr * _adam(gradient, state)
            case "sgd":
                momentum: float = getattr(self.config, "momentum", 0.0)
                return -lr * _momentum(gradient + decay * value, state, momentum)
        return self.config.reference_move(value, gradient, state, lr)


def _adam(gradient: Array, state: State) -> Array:
    zeros = np.zeros_like(gradient)
    steps = state.get("step", np.zeros(())) + 1
    mean = BETA1 * state.get("exp_avg", zeros) + (1 - BETA1) * gradient
    square = BETA2 * state.get("exp_avg_sq", zeros) + (1 - BETA2) * gradient**2
    state |= {"step": steps, "exp_avg": mean, "exp_avg_sq": square}
    direction: Array = mean / (1 - BETA1**steps) / (np.sqrt(square / (1 - BETA2**steps)) + EPSILON)
    return direction


def _momentum(gradient: Array, state: State, momentum: float) -> Array:
    if not momentum:
        return gradient
    velocity: Array = momentum * state.get("momentum_buffer", np.zeros_like(gradient)) + gradient
    state["momentum_buffer"] = velocity
    return velocity


def clipped(gradients: Mapping[str, Array], clip_norm: float | None) -> dict[str, Array]:
    """The gradients, scaled so that the norm of all together is no larger than `clip_norm`."""
    norm = math.sqrt(sum(float(np.sum(gradient**2)) for gradient in gradients.values()))
    if clip_norm is None or norm <= clip_norm:
        return dict(gradients)
    return {name: gradient * (clip_norm / norm) for name, gradient in gradients.items()}

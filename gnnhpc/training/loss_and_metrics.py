"""The loss and the metrics of each task: classification, and prediction of links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.models.model import Outputs
from gnnhpc.records.schema import Phase

MetricSums = dict[str, tuple[float, float]]
"""A metric's sum and what it is divided by, both added over replicas."""
Targets = Mapping[str, Tensor]


@dataclass(frozen=True)
class Classification:
    """One class a row, by cross-entropy; rows whose target is `IGNORED` do not count."""

    outputs: Outputs
    """What the last layer gives."""
    splits: bool
    """Whether an evaluation has rows to validate and rows to test, as that of nodes and graphs; its
    `loss` and `accuracy` are then those of the test split."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        """The loss of a micro-batch's outputs [rows, width], summed over the valid targets of a
        split."""
        target = targets[split]
        if self.outputs == "log_probabilities":
            return functional.nll_loss(outputs, target, reduction="sum", ignore_index=IGNORED)
        return functional.cross_entropy(outputs, target, reduction="sum", ignore_index=IGNORED)

    def valid_targets(self, targets: Targets, split: Phase) -> int:
        """How many targets of a split count."""
        return int((targets[split] != IGNORED).sum())

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        """Names of the reported metrics; `loss` is the first."""
        extra = ("val_accuracy", "test_accuracy") if self.splits and phase == "test" else ()
        return ("loss", "accuracy", *extra)

    def metric_sums(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> MetricSums:
        """The metrics of one replica's mini-batch; `outputs` has one tensor a micro-batch."""
        pairs = [(o, m.targets) for o, m in zip(outputs, batch.microbatches, strict=True)]
        loss = sum(float(self.summed_loss(output, targets, phase)) for output, targets in pairs)
        right, count = _accuracy(pairs, phase)
        sums: MetricSums = {"loss": (loss, count), "accuracy": (right, count)}
        if self.splits and phase == "test":
            sums["val_accuracy"] = _accuracy(pairs, "val")
            sums["test_accuracy"] = sums["accuracy"]
        return sums


def _accuracy(pairs: Sequence[tuple[Tensor, Targets]], split: str) -> tuple[float, float]:
    """How many rows with a valid target are right, and how many there are."""
    right = count = 0.0
    for output, targets in pairs:
        target = targets[split]
        # Few of the nodes may have one: 60 of PubMed's 19,717 in training.
        rows = (target != IGNORED).nonzero().flatten()
        right += float((output[rows].argmax(-1) == target[rows]).sum())
        count += len(rows)
    return right, count


SCORED = ("val", "test")


@dataclass(frozen=True)
class LinkPrediction:
    """Outputs are embeddings [rows, width]; a pair's score is the dot product of its two nodes'.

    Targets are int64 [pairs, 3]: two rows, and 1 for a link or 0. The loss is the binary
    cross-entropy of the scores. In evaluation links, which come first, stand before the same
    negatives, the pool, wherever they are scored; of each link

    - `auc` is the share of the pool that it scores above, ties counting half;
    - `mrr` is 1 / rank, 1 + those of the pool above it + half of those equal to it (the mean of the
      optimistic and the pessimistic rank, as in OGB's evaluator; Hu et al. 2020);
    - `hits@k` is 1 if it scores above the pool's k-th best, else 0 (ties are misses; OGB's too);
    - `loss` is half of its own cross-entropy and of the pool's mean.

    All are means over links, so that those of parts add up.
    """

    hits: int
    """The k of hits@k."""

    def summed_loss(self, outputs: Tensor, targets: Targets, split: Phase) -> Tensor:
        pairs = targets[split]
        labels = pairs[:, 2].to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(
            scores(outputs, pairs), labels, reduction="sum"
        )

    def valid_targets(self, targets: Targets, split: Phase) -> int:
        return len(targets[split])

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        if phase == "train":
            return ("loss",)
        kinds = ("auc", "mrr", f"hits@{self.hits}")
        return ("loss", *(f"{split}_{kind}" for split in SCORED for kind in kinds))

    def metric_sums(self, phase: Phase, outputs: Sequence[Tensor], batch: Batch) -> MetricSums:
        scored = [(o, m.targets) for o, m in zip(outputs, batch.microbatches, strict=True)]
        if phase == "train":
            losses = [float(self.summed_loss(*pair, phase)) for pair in scored]
            valid = sum(self.valid_targets(targets, phase) for _, targets in scored)
            return {"loss": (sum(losses), valid)}
        sums = dict.fromkeys(self.metrics(phase), (0.0, 0.0))
        for output, targets in scored:
            for split in SCORED:
                pairs = targets[split]
                links = int(pairs[:, 2].sum())
                for kind, value in self._scored(output, pairs).items():
                    name = kind if (split, kind) == (phase, "loss") else f"{split}_{kind}"
                    if name in sums:
                        summed, count = sums[name]
                        sums[name] = (summed + value, count + links)
        return sums

    def _scored(self, outputs: Tensor, pairs: Tensor) -> dict[str, float]:
        """Summed over the links."""
        found, is_link = scores(outputs, pairs), pairs[:, 2] == 1
        links, pool = found[is_link], found[~is_link].sort().values
        below = torch.searchsorted(pool, links)
        above = len(pool) - torch.searchsorted(pool, links, right=True)
        equal = len(pool) - below - above
        losses = functional.softplus(-links) + functional.softplus(pool).mean()
        return {
            "loss": float(losses.sum()) / 2,
            "auc": float((below + equal / 2).double().sum()) / len(pool),
            "mrr": float((1 / (1 + above + equal / 2).double()).sum()),
            f"hits@{self.hits}": float((links > pool[-self.hits]).sum()),
        }


def scores(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """The dot product of two rows of `embeddings` [rows, width] for each of `pairs` [n, 3]: [n]."""
    one, other = (embeddings.index_select(0, pairs[:, end]) for end in (0, 1))
    return (one * other).sum(1)


Task = Classification | LinkPrediction


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of a step over the valid targets of all replicas.

    Replicas average their gradients, so a replica divides by its share of the global count:
    micro-batches and replicas of any size add up to the sequential gradient.
    """

    task: Task
    replicas: int

    def __call__(self, output: Tensor, microbatch: MicroBatch, valid_targets: int) -> Tensor:
        """One micro-batch's part; `valid_targets` is the batch's count over all replicas."""
        summed = self.task.summed_loss(output, microbatch.targets, "train")
        return summed / (valid_targets / self.replicas)

"""Loss and accuracy worked out from outputs and raw labels, to hold the task's against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnhpc.check.watches.sum_rounding import softmax_rounding, sum_rounding, unit
from gnnhpc.models.model import OutputKind, Outputs
from gnnhpc.records.schema import Phase

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlainTally:
    """Sums over the labelled rows of one replica's mini-batch."""

    loss: float
    loss_error: float
    """How far rounding may move the loss."""
    right: int
    """Rows whose label's output is the highest."""
    ties: int
    """Of these, rows where another output is as high: the task may take either."""
    labelled: int


@dataclass(frozen=True)
class PlainSum:
    """A metric of one replica's mini-batch, summed over what it is a mean of."""

    value: float
    error: float
    """How far rounding may move it, or outputs that are equally high."""
    count: int


@dataclass(frozen=True)
class PlainTallies:
    """Of one replica's mini-batch."""

    phase: Phase
    step: int
    by_metric: dict[str, PlainSum] = field(default_factory=dict)


def class_metrics(
    phase: Phase, names: Iterable[str], tally_of: Callable[[str], PlainTally]
) -> dict[str, PlainSum]:
    """Of metrics with these names; `tally_of` a split. Those without one are the phase's own."""
    found = {}
    for name in names:
        split = name.removesuffix("_accuracy") if name.endswith("_accuracy") else phase
        tally = tally_of(split)
        value, error = (
            (tally.loss, tally.loss_error) if name == "loss" else (tally.right, tally.ties)
        )
        found[name] = PlainSum(value, error, tally.labelled)
    return found


def plain_tally(outputs: Sequence[Tensor], labels: Sequence[Ids], kind: OutputKind) -> PlainTally:
    """Cross-entropy in float64, and how many rows are right.

    `outputs` are [rows, classes] a micro-batch, `labels` [rows], negative where there is none.
    """
    total = error = 0.0
    right = ties = labelled = 0
    for output, label in zip(outputs, labels, strict=True):
        rows = np.flatnonzero(label >= 0)
        given = output.detach().cpu().numpy()[rows].astype(np.float64)
        chosen = given[np.arange(len(rows)), label[rows]]
        highest = given.max(axis=1, initial=-np.inf)
        losses = -chosen
        if kind == "logits":
            shifted = given - highest[:, None]
            terms = np.exp(shifted)
            losses = np.log(terms.sum(axis=1)) - (chosen - highest)
            error += float(softmax_rounding(output, shifted, terms, chosen - highest).sum())
            error += _of_the_highest(output, highest)
        total += float(losses.sum())
        error += sum_rounding(output, len(label), float(np.abs(losses).sum()))
        best = chosen == highest
        right += int(best.sum())
        ties += int((best & ((given == highest[:, None]).sum(axis=1) > 1)).sum())
        labelled += len(rows)
    return PlainTally(total, error, right, ties, labelled)


def plain_gradient(
    output: Tensor, label: Ids, kind: Outputs, scale: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of `scale` times the summed cross-entropy by the outputs [rows, classes], and its rounding.

    For logits the softmax less one at the label; for log-probabilities less one there alone.
    """
    given = output.detach().cpu().numpy()
    rows = np.flatnonzero(label >= 0)
    gradient, error = np.zeros(given.shape), np.zeros(given.shape)
    if kind == "logits" and len(rows):
        chosen = given[rows].astype(np.float64)
        highest = chosen.max(axis=1, keepdims=True)
        shifted = chosen - highest
        softmax = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
        gradient[rows] = softmax
        # An exponential is off by as much as its argument, which is a rounded difference.
        sizes = np.abs(np.where(softmax > 0, shifted, 0.0))
        if output.device.type != "cpu":
            sizes = sizes + np.abs(highest)
        error[rows] = unit(output) * softmax * (2 * sizes + given.shape[1] + 8)
    gradient[rows, label[rows]] -= 1.0
    error[rows] += 8 * unit(output)
    return scale * gradient, scale * error


def _of_the_highest(output: Tensor, highest: npt.NDArray[np.float64]) -> float:
    """What adding the highest logit to a sum's logarithm loses, as torch does on a GPU."""
    if output.device.type == "cpu":
        return 0.0
    return 4 * unit(output) * float(np.abs(highest).sum())

"""Holds the loss that was differentiated against one worked out from outputs and raw labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnhpc.models.protocol import Outputs

Ids = npt.NDArray[np.int64]


def plain_loss(
    outputs: Sequence[Tensor], labels: Sequence[Ids], kind: Outputs
) -> tuple[float, float]:
    """Cross-entropy summed over labelled rows in float64, and how far rounding may move it.

    `outputs` are [rows, classes] a micro-batch, `labels` [rows], negative where there is none.
    """
    total = error = 0.0
    for output, label in zip(outputs, labels, strict=True):
        rows = np.flatnonzero(label >= 0)
        given = output.detach().cpu().double().numpy()[rows]
        chosen = given[np.arange(len(rows)), label[rows]]
        highest = given.max(axis=1, initial=-np.inf)
        sums = (
            0.0
            if kind == "log_probabilities"
            else (highest + np.log(np.exp(given - highest[:, None]).sum(axis=1)))
        )
        losses = np.asarray(sums - chosen)
        total += float(losses.sum())
        # Each loss is a difference of rounded numbers after a sum over the classes; the losses are
        # then added one after another, each partial sum rounded.
        unit = float(np.finfo(str(output.dtype).removeprefix("torch.")).eps)
        sizes = np.abs(given).max(axis=1, initial=0.0) + np.abs(losses) + 1.0
        error += unit * (given.shape[1] + len(rows) + 8) * float(sizes.sum())
    return total, error

"""How much single or double precision may lose where torch adds up many numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Values = npt.NDArray[Any]

GPU_THREADS = 32
"""With which torch adds up the losses of all rows (ATen, `NLL_LOSS_THREADS`)."""


def most_added(rows: int, *, on_gpu: bool) -> int:
    """In how many additions one after another a number of `rows` takes part, at the most.

    On a CPU torch adds on 4 or 8 levels (ATen, `cascade_sum`), each of 16 numbers, or of the 4th
    root of all where these are more; on a GPU each thread adds its own, and these are added then.
    """
    if on_gpu:
        return min(rows, rows // GPU_THREADS + GPU_THREADS + 1)
    return min(rows, 128 + 8 * int(rows**0.25))


def sum_rounding(of: Tensor, rows: int, size: float) -> float:
    """What the sum of `rows` numbers as precise as `of` may be off by; `size` that of all."""
    return unit(of) * most_added(rows, on_gpu=of.device.type != "cpu") * size


def softmax_rounding(of: Tensor, shifted: Values, terms: Values, chosen: Values) -> Values:
    """By how much each row's log-probability [rows], the `chosen` of `shifted` less the logarithm
    of the sum of `terms`, their exponentials, may be off, twice over.

    `shifted` [rows, classes] are logits less their row's highest, as torch has them first, so that
    their own size loses nothing; on a GPU it adds the highest to the logarithm, and loses that.
    """
    total = terms.sum(axis=1, keepdims=True)
    # The highest is 1, to the bit. Adding a term loses half a unit of the sum, or all of the term.
    others = terms.copy()
    others[np.arange(len(others)), shifted.argmax(axis=1)] = 0.0
    added = np.minimum(unit(of) / 2 * total, others) + unit(of) * others
    of_arguments = unit(of) / 2 * others * np.abs(np.where(others > 0, shifted, 0.0))
    off: Values = (added + of_arguments).sum(axis=1) / total[:, 0]
    logarithm = np.log(total[:, 0])
    off += unit(of) / 2 * (2 * logarithm + np.abs(chosen) + np.abs(chosen - logarithm))
    return 2 * off


def unit(of: Tensor) -> float:
    """Twice what one rounding may change, relatively."""
    return float(torch.finfo(of.dtype).eps)

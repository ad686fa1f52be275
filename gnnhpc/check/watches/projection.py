"""A tensor as one number that is linear in it, to compare a mean with what it is the mean of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Projection:
    """A weighted sum of a tensor's elements: the mean's is the mean of the projections.

    `size` is the same sum of their absolute values, by which rounding is judged.
    """

    value: float
    size: float


def project(tensor: Tensor) -> Projection:
    values = tensor.detach().to("cpu", torch.float64).reshape(-1).numpy()
    # Weights that differ, so that elements in other places do not add up to the same.
    weights = 1.0 + (np.arange(len(values)) * 0.618033988749895) % 1.0
    return Projection(float(values @ weights), float(np.abs(values) @ weights))


def is_mean(found: Projection, own: Sequence[Projection], dtype: str) -> bool:
    """But for the rounding of each term's division and of the sum of as many terms."""
    mean = sum(each.value for each in own) / len(own)
    size = sum(each.size for each in own) / len(own)
    return abs(found.value - mean) <= float(np.finfo(dtype).eps) * (len(own) + 2) * size

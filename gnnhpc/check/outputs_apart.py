"""How far outputs are from those that are expected, where some of them are very large.

A few such numbers, as a user's layer fills in for classes that are none, or one node's of features
in another unit, would make any error of all others small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

MOST = 1_000.0
"""Times what is typical, which is as much as anything counts."""
INFINITE = 1e30
"""As good as infinite: single and double precision may have different fills, such as the least
number of each."""


def relative_difference(found: Array, exact: Array) -> float:
    """Of `found` from `exact`, both [rows, ...]; not finite where one of them alone is.

    A row that is much larger than most counts as `MOST` times a typical one. Numbers that both have
    to the bit, and that are so much larger than most, or that come again and again and are so much
    larger than most others, count nothing: no sum is so exact.
    """
    found, exact = (bounded(torch.from_numpy(np.asarray(x))).numpy() for x in (found, exact))
    same, large = found == exact, np.abs(exact)
    again = _come_again(exact)
    fills = same & (large > MOST * _typical(large))
    fills |= same & again & (large > MOST * _typical(large[~again]))
    away = _row_norms(np.where(same, 0.0, found - exact))
    sizes = _row_norms(np.where(fills, 0.0, exact))
    typical = _typical(sizes)
    beyond = sizes > MOST * typical
    weights = np.where(beyond, MOST * typical / np.where(beyond, sizes, 1.0), 1.0)
    norm = float(np.linalg.norm(weights * sizes))
    return float(np.linalg.norm(weights * away)) / max(norm, 1e-300)


def without_unknown(found: Array, exact: Array) -> tuple[Array, Array]:
    """Both, with 0 where both are no numbers: an evaluation may give such rows, of which no metric
    is."""
    unknown = np.isnan(found) & np.isnan(exact)
    return np.where(unknown, 0.0, found), np.where(unknown, 0.0, exact)


def bounded(x: Tensor) -> Tensor:
    """[rows, ...] as it is, or in double precision with what is as good as infinite in the size of
    its row's other numbers, so that sums of it tell something of these."""
    beyond = x.abs() >= INFINITE
    if not beyond.any():
        return x
    x = x.double()
    flat, without = x.flatten(1) if x.ndim > 1 else x[:, None], beyond.reshape(len(x), -1)
    count = (~without).sum(1).clamp(min=1)
    rms = (flat.masked_fill(without, 0.0).square().sum(1) / count).sqrt()
    size = 2 * torch.where(rms > 0, rms, 1.0)
    return torch.where(without, flat.sign() * size[:, None], flat).reshape(x.shape)


def _come_again(values: Array) -> npt.NDArray[np.bool_]:
    """Of each number whether another one is the same."""
    _, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    again: npt.NDArray[np.bool_] = (counts > 1)[numbers].reshape(values.shape)
    return again


def _row_norms(x: Array) -> Array:
    norms: Array = np.linalg.norm(x.reshape(len(x), math.prod(x.shape[1:])), axis=1)
    return norms


def _typical(sizes: Array) -> float:
    """The median of those that are not 0; infinite where there is none."""
    some = sizes[sizes > 0]
    return float(np.median(some)) if some.size else math.inf

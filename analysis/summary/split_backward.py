"""Which cells compute gradients of weights apart from those of inputs, and for how long."""

from __future__ import annotations

import math

import pandas as pd

from gnnhpc.core.schedules import SPLIT_BACKWARD

Shares = tuple[float, float, float]
"""Seconds of forwards, gradients of inputs and gradients of weights, of which the ratio matters."""

LEAST_SHARE = 0.05
"""Share of the backward; with less for gradients of weights, a stage waits as without the split."""


def has_split_backward(schedule: str, stages: int) -> bool:
    """Whether a pipeline has the schedule zero-bubble or zbv; a single stage waits for no other."""
    return schedule in SPLIT_BACKWARD and stages > 1


def rows_with_split_backward(rows: pd.DataFrame) -> pd.Series[bool]:
    """Whether each row of cells or of the summary has a split backward."""
    return rows["schedule"].isin(SPLIT_BACKWARD) & (rows["stages"] > 1)


def shares_of(forward_s: float, backward_s: float, weights_s: float) -> Shares | None:
    """The shares, where `backward_s` includes `weights_s`; None where one of them is not known."""
    shares = forward_s, max(0.0, backward_s - weights_s), weights_s
    known = all(map(math.isfinite, shares))
    return shares if known and sum(shares) > 0.0 else None

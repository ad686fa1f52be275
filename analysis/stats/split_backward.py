"""Gradients of weights apart from those of inputs: where they are, and what a bound needs."""

from __future__ import annotations

import math

import pandas as pd

from gnnhpc.core.schedule import SPLIT_BACKWARD

Shares = tuple[float, float, float]
"""Forwards, gradients of inputs and gradients of weights, in seconds of which the ratio matters."""

LEAST_SHARE = 0.05
"""Of backward: with less of it to put where a stage waits, it waits as if nothing were apart."""


def has_weights_apart(schedule: str, stages: int) -> bool:
    """Of a pipeline under zero-bubble or zbv; a single stage waits for nobody."""
    return schedule in SPLIT_BACKWARD and stages > 1


def rows_with_weights_apart(rows: pd.DataFrame) -> pd.Series[bool]:
    """Likewise of each row of cells or of the summary."""
    return rows["schedule"].isin(SPLIT_BACKWARD) & (rows["stages"] > 1)


def shares_of(forward_s: float, backward_s: float, weights_s: float) -> Shares | None:
    """`weights_s` is a part of `backward_s`; None where one is not known, or nothing took time."""
    shares = forward_s, max(0.0, backward_s - weights_s), weights_s
    known = all(map(math.isfinite, shares))
    return shares if known and sum(shares) > 0.0 else None

"""How far rounding alone drives two trainings of the same thing apart, step by step.

Siblings start from equal parameters, so their first losses differ by the order of float sums
alone. Training then enlarges a difference (Adam turns a gradient that is all rounding into a whole
step), but smoothly: by a factor a step, not by any amount. So each pair is held to its own
history: a step may take them at most `growth` times as far apart as they have been before. A
defect is a jump, at the first step or later. Once they are so far apart that this would allow
everything, nothing is concluded any more; nor after a training has diverged on both sides, where
differences grow as fast as the loss itself.

Measured on 246 pairs of siblings of 60 to 400 steps in float32 (ViG and GAT, in one process and in
pipelines and replicas, fused and PyG's layers, 1 to 4 micro-batches, learning rates from 0.001 to
0.05, compiled kernels and none, sums in the order of three instruction sets): first losses at most
1e-6 apart, first norms 4e-5; second losses at most 6e-5 (Adam's first step); from then on a step
took losses at most 20 and norms 19 times as far apart as they had been. Test losses, which follow
running statistics too, were up to 200 times as far apart as training losses had come. From 1e-6
the losses of ViG were 1e-3 apart after 15 to 40 steps and 0.1 after 120 to 200; those of GAT
stayed below 1e-2 for 150 to 400.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

MEANINGLESS = 0.5
"""The allowed difference, relative, from which on nothing is concluded."""
SMALL = 1e-3
"""The share of the first value below which differences are seen relative to it: a loss near zero is
the difference of much larger numbers."""
DIVERGED = 30.0
"""How many times its first value a loss is that has diverged."""
RECORDED_TO = 1e-9
"""Records keep nine decimals."""


@dataclass(frozen=True)
class Limits:
    """What rounding explains of one quantity, relative."""

    first: float | None
    """Allowed in the first step, before anything was learnt; None if nothing is measured then."""
    later: float
    """The least that later steps are taken to have been apart before."""
    growth: float
    """How many times as far apart as before a step may take them."""


@dataclass(frozen=True)
class Comparison:
    """One reference against n others; arrays of n."""

    departs_at: NDArray[np.intp]
    """The first place at which one is further apart than rounding explains; -1 for none."""
    apart: Values
    """How far apart they are there, relative; nan for none."""
    before: Values
    """How far apart they had been before it, at most."""
    concluded: NDArray[np.intp]
    """Places that were judged: those before nothing can be concluded any more."""


def relative_difference(reference: Values, others: Values) -> Values:
    """|reference [places] - others [n, places]| over the larger of them; nan where one is missing.

    Over `SMALL` times the reference's first value where both are smaller; 1 beside infinity.
    """
    present = reference[np.isfinite(reference)]
    least = SMALL * abs(present[0]) if present.size else 0.0
    larger = np.maximum(np.maximum(np.abs(reference), np.abs(others)), least)
    with np.errstate(invalid="ignore"):
        difference = np.abs(reference - others)
        # A missing value times zero is still missing.
        beyond = np.where(difference > RECORDED_TO, difference, difference * 0.0)
        relative: Values = beyond / np.where(larger > 0.0, larger, 1.0)
    relative[np.isinf(reference) != np.isinf(others)] = 1.0
    relative[np.isnan(reference) | np.isnan(others)] = np.nan
    return relative


def so_far(apart: Values) -> Values:
    """[n, places] -> the most that each was apart up to and with a place; missing ones count 0."""
    most: Values = np.maximum.accumulate(np.nan_to_num(apart, nan=0.0), axis=-1)
    return most


def both_diverged(reference: Values, others: Values) -> Mask:
    """[n, places]: whether both losses have grown to `DIVERGED` times the first by this place."""
    present = reference[np.isfinite(reference)]
    limit = DIVERGED * abs(present[0]) if present.size else np.inf
    large: Mask = np.minimum(np.abs(reference), np.abs(others)) > limit
    return np.logical_or.accumulate(large, axis=-1)


def compare(
    reference: Values,
    others: Values,
    limits: Limits,
    *,
    also_apart: Values | None = None,
    diverged: Mask | None = None,
) -> Comparison:
    """Judge `others` [n, places] against `reference` [places], in order of time.

    `also_apart` [n, places] is how far apart they have been by each place in another quantity that
    shows the same. Places that either lacks are not judged, nor those where both have `diverged`.
    """
    apart = relative_difference(reference, others)
    before = np.concatenate([np.zeros((len(apart), 1)), so_far(apart)[:, :-1]], axis=1)
    allowed = limits.growth * np.maximum(limits.later, before)
    if limits.first is not None:
        allowed[:, :1] = limits.first
    if also_apart is not None:
        allowed = np.maximum(allowed, limits.growth * also_apart)
    meaningful = allowed < MEANINGLESS
    if diverged is not None:
        meaningful &= ~diverged
    departs = (apart > allowed) & meaningful
    found = departs.any(axis=1)
    at = np.where(found, departs.argmax(axis=1), -1)
    rows = np.arange(len(apart))
    return Comparison(
        at,
        np.where(found, apart[rows, at], np.nan),
        np.where(found, before[rows, at], np.nan),
        (meaningful & np.isfinite(apart)).sum(axis=1),
    )

"""Compares what a step left behind with the twin's: how parameters moved, and buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gnnhpc.check.capture import Array
from gnnhpc.check.compare_gradients import Difference, differences


class MoveDifference(NamedTuple):
    """How one layer's move differs from the rule's, relative to that; and what rounding may add."""

    difference: Difference
    rounding: float


def compare_moves(
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    expected: Mapping[str, Array],
    layers: list[str],
    eps: float,
) -> Iterator[MoveDifference]:
    """Of each layer that the rule moves; a parameter keeps `eps` of its own size at best."""
    wanted = {name: expected[name] - value for name, value in before.items()}
    moved = {name: after[name] - value for name, value in before.items()}
    sizes = {d.layer: d.twin_norm for d in differences(before, before, layers)}
    for each in differences(moved, wanted, layers):
        if each.twin_norm > 0.0:
            yield MoveDifference(each, 4 * eps * sizes[each.layer] / each.twin_norm)


def compare_buffers(
    ours: Mapping[str, Array], expected: Mapping[str, Array]
) -> Iterator[tuple[str, float]]:
    """Each buffer's name and relative difference; one that is missing is wholly different.

    A running mean is relative to its own size and the spread that it is the mean of.
    """
    for name, value in expected.items():
        spread: Array | float = 0.0
        if name.endswith("running_mean"):
            spread = np.sqrt(expected.get(name.removesuffix("mean") + "var", 0.0))
        found = ours.get(name)
        if found is None or found.shape != value.shape:
            yield name, math.nan
            continue
        # As of a mask of scores, which holds infinite numbers.
        same = (found == value) | (np.isnan(found) & np.isnan(value))
        with np.errstate(invalid="ignore"):
            apart = found.astype(np.longdouble) - value if np.isrealobj(value) else found - value
            away = float(np.linalg.norm(np.where(same, 0.0, apart)))
        scale = float(np.linalg.norm(value[np.isfinite(value)]) + np.linalg.norm(spread))
        yield name, away / scale if scale else away

"""The most that a row's speedup can be: the bound of balanced stages under its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from analysis.summary.baseline import Baseline
from analysis.summary.configurations import Configuration
from gnnhpc.core.bounds import bound, bound_with_weights
from gnnhpc.core.schedule import ScheduleName


def bound_of(row: Configuration) -> float | None:
    """Over one process; of a training step whose gradients of weights are apart by the seconds that
    these and the rest of its passes took, and None where nobody measured them.

    An evaluation is forwards alone.
    """
    replicas, stages = row.layout.replicas, row.layout.stages
    if not row.split_backward:
        return bound(replicas, stages, row.microbatches, row.parts)
    if row.phase != "train":
        # ZBV's last forward goes back through the second parts of all stages, one after the other:
        # a stage waits as long as if its two parts were one.
        return bound(replicas, stages, row.microbatches)
    shares = row.shares
    if shares is None:
        return None
    schedule = cast(ScheduleName, row.settings["schedule"])
    return bound_with_weights(schedule, replicas, stages, row.microbatches, shares, row.parts)


def balanced_bubble(row: Configuration) -> float | None:
    """The share of rank-time that balanced stages must wait."""
    most = bound_of(row)
    return None if most is None else 1.0 - most / row.layout.world_size


@dataclass(frozen=True)
class Limits:
    """Of a speedup over a baseline."""

    bound: float | None
    """Of balanced stages, over the baseline's."""
    credible: float | None
    """What no speedup is above without a reason in the seconds of its layers."""


def limits_over(row: Configuration, base: Configuration | None, wanted: Baseline) -> Limits:
    """`wanted` is the baseline that was asked for, `base` the one that was found."""
    most, of_base = bound_of(row), _of_baseline(base, wanted)
    if most is None or of_base is None:
        return Limits(None, None)
    # The bound of weights apart is of stages that are alike in their shares of forwards, gradients
    # of inputs and gradients of weights. Others can wait less: where the later stages have most of
    # the weights, the earlier ones have their gradients sooner. So can stages of several parts that
    # are unlike, as where the first and the last are light. But none works more than all the time,
    # so that ranks that never wait are what it is held against.
    apart = row.split_backward and row.phase == "train"
    credible = row.layout.world_size if apart or row.parts > 1 else most
    return Limits(most / of_base, credible / of_base)


def _of_baseline(base: Configuration | None, wanted: Baseline) -> float | None:
    if base is not None:
        return bound_of(base)
    return bound(wanted.layout.replicas, wanted.layout.stages, wanted.microbatches)

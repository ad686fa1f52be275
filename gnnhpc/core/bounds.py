"""The most that balanced stages can give under a schedule, and how long they must wait."""

from __future__ import annotations

from gnnhpc.core.schedule import ScheduleName, ideal_step_s


def bound(replicas: int, stages: int, microbatches: int, parts: int = 1) -> float:
    """The most that balanced stages can give over one process: R * S*M / (M + (S-1)/V).

    V is the parts of a stage: 1, but under the interleaved schedule (Narayanan et al. 2021, 2.2.2)
    and of ZBV, which has 2.
    Schedules with weights apart have `bound_with_weights`.
    """
    passes = parts * microbatches
    return replicas * stages * passes / (passes + stages - 1)


def bound_with_weights(
    schedule: ScheduleName,
    replicas: int,
    stages: int,
    microbatches: int,
    shares: tuple[float, float, float],
    parts: int = 1,
) -> float:
    """`bound` of a schedule with weights apart, where each stage computes forwards, gradients of
    inputs and gradients of weights for as long as `shares` have it, each of its parts alike.

    Of thirds ZB-H1's is that of three parts a stage from as many micro-batches as stages on (Qi et
    al. 2024, table 2), and without gradients of weights 1F1B's; ZBV's of thirds is that of six
    parts from 2*S - 1 micro-batches on: there a stage waits for the forwards of first parts before
    it, and never again.
    """
    forward, backward, weights = ([share / parts] * (stages * parts) for share in shares)
    step_s = ideal_step_s(
        *(schedule, forward, backward, microbatches), weights_s=weights, parts=parts
    )
    return replicas * stages * microbatches * sum(shares) / step_s


def ideal_bubble(stages: int, microbatches: int, parts: int = 1) -> float:
    """The share of rank-time that balanced stages must wait: (S-1) / (V*M + S-1)."""
    return (stages - 1) / (parts * microbatches + stages - 1)

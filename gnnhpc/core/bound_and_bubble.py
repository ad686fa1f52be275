"""The highest speedup that balanced stages can reach under a schedule, and their bubble."""

from __future__ import annotations

from gnnhpc.core.schedules import ScheduleName, ideal_step_s


def bound(replicas: int, stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """The highest speedup of balanced stages over one process: R * S*M / (M + (S-1)/V).

    V is the number of virtual stages a stage, 1 but under the interleaved schedule (Narayanan et
    al. 2021, section 2.2.2) and ZBV. `bound_with_split_backward` is for schedules that split it.
    """
    passes = virtual_stages * microbatches
    return replicas * stages * passes / (passes + stages - 1)


def bound_with_split_backward(
    schedule: ScheduleName,
    replicas: int,
    stages: int,
    microbatches: int,
    shares: tuple[float, float, float],
    virtual_stages: int = 1,
) -> float:
    """`bound` of a schedule that computes the gradients of weights apart.

    `shares` are the relative seconds of forwards, gradients of inputs and gradients of weights, the
    same in each stage and virtual stage. For equal shares ZB-H1 has the bound of three virtual
    stages once there are as many micro-batches as stages (Qi et al. 2024, table 2), and ZBV that of
    six from 2*S - 1 micro-batches on.
    """
    forward, backward, weights = (
        [share / virtual_stages] * (stages * virtual_stages) for share in shares
    )
    step_s = ideal_step_s(
        *(schedule, forward, backward, microbatches),
        weights_s=weights,
        virtual_stages=virtual_stages,
    )
    return replicas * stages * microbatches * sum(shares) / step_s


def ideal_bubble(stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """The share of rank-time in which balanced stages must wait: (S-1) / (V*M + S-1)."""
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)

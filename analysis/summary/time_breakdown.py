"""Where a step of several ranks loses time against ranks that lose nothing, as parts that add up.

The parts lead from the step that the best sequential run would take on as many ranks (linear) to
the measured one. With n = R*S ranks and f = (V*M+S-1)/(V*M), by which a pipeline of equal stages
takes longer than its passes (Huang et al. 2019, section 2.3; with V virtual stages Narayanan et al.
2021, section 2.2; under zero-bubble and zbv what their order of actions gives for the measured
ratio of forwards, gradients of inputs and gradients of weights, Qi et al. 2024):

- schedule: linear * (f-1), so that linear and schedule are the step at the bound;
- recomputation: recomputed forwards in the ranks' passes beyond those of the best sequential run;
  the passes of the next two parts are without them;
- microbatches: what the sequential run's passes take longer in M micro-batches, * f/n;
- contention: what the ranks' passes take longer than those of that run, * f/n;
- imbalance: the ideal step of the measured passes, less that of equal stages;
- waits: a rank's passes and its time outside spans, less the ideal step and the sequential run's
  share of that time: transfers, and ranks that come late. A single rank has no waits, and this is
  part of its rest;
- allreduce; and rest, such as the optimizer, less the sequential run's share of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

PREFIX = "lost_"
"""Prefix of the columns in the summary."""
_ROUNDING = 1e-12
"""Share of a step below which a difference of sums is rounding."""


@dataclass(frozen=True)
class StepSeconds:
    """A step of one configuration and its parts, seconds: the mean of the runs' means."""

    step: float
    passes: float
    """Forward and backward, of a rank on average."""
    outside: float = 0.0
    """Outside its spans: waiting for others, and what lies between spans."""
    allreduce: float = 0.0
    recomputed: float = 0.0
    """Recomputed forwards, which are part of the passes."""

    @property
    def once(self) -> float:
        """Passes without recomputed forwards."""
        return self.passes - self.recomputed

    def times(self, factor: float) -> StepSeconds:
        """The same for a step of `factor` times the samples."""
        return StepSeconds(*(factor * getattr(self, field.name) for field in fields(self)))


PARTS = (
    *("linear", "schedule", "recomputation", "microbatches", "contention", "imbalance", "waits"),
    *("allreduce", "rest"),
)
"""The parts of a step, from the linear ideal to the measured step."""
COLUMNS = tuple(f"{PREFIX}{part}_s" for part in PARTS)


def break_down(
    step: StepSeconds,
    ideal_s: float,
    best: StepSeconds,
    same: StepSeconds | None,
    *,
    ranks: int,
    stretch: float,
) -> dict[str, float | None]:
    """The parts of `step` of `ranks` ranks, whose schedule takes `stretch` times its passes.

    By column of the summary, in seconds that add up to the step; a part that is faster than
    expected is negative, and one that is only rounding is 0. `ideal_s` is the schedule with the
    measured passes and nothing else. `best` is the best sequential run, `same` the one in as many
    micro-batches, both for as many samples as `step`; without `same` its part is None, and in
    `contention`.
    """
    share = stretch / ranks
    alone = best if same is None else same
    waits = step.passes + step.outside - ideal_s - best.outside * share
    single = ranks == 1
    rest = step.step - step.passes - step.outside - step.allreduce
    rest -= (best.step - best.passes - best.outside) * share
    parts = (
        best.step / ranks,
        best.step * (share - 1 / ranks),
        step.recomputed * stretch - best.recomputed * share,
        None if same is None else (same.once - best.once) * share,
        step.once * stretch - alone.once * share,
        ideal_s - step.passes * stretch,
        0.0 if single else waits,
        step.allreduce,
        rest + (waits if single else 0.0),
    )
    least = _ROUNDING * abs(step.step)
    values = (0.0 if part is not None and abs(part) <= least else part for part in parts)
    return dict(zip(COLUMNS, values, strict=True))

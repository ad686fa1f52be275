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


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds of a step, which add up to it; a part that is faster than expected is negative."""

    linear: float
    schedule: float
    recomputation: float
    microbatches: float | None
    """None where no sequential run in as many micro-batches was measured: part of `contention`."""
    contention: float
    imbalance: float
    waits: float
    allreduce: float
    rest: float

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) or 0.0 for field in fields(self))

    def columns(self) -> dict[str, float | None]:
        """Column of the summary -> seconds; a part that is only rounding is 0."""
        least = _ROUNDING * abs(self.total)
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            f"{PREFIX}{name}_s": 0.0 if part is not None and abs(part) <= least else part
            for name, part in parts.items()
        }


COLUMNS = tuple(f"{PREFIX}{field.name}_s" for field in fields(TimeBreakdown))


def break_down(
    step: StepSeconds,
    ideal_s: float,
    best: StepSeconds,
    same: StepSeconds | None,
    *,
    ranks: int,
    stretch: float,
) -> TimeBreakdown:
    """Break down `step` of `ranks` ranks, whose schedule takes `stretch` times its passes.

    `ideal_s` is the schedule with the measured passes and nothing else. `best` is the best
    sequential run, `same` the one in as many micro-batches, both for as many samples as `step`.
    """
    share = stretch / ranks
    alone = best if same is None else same
    waits = step.passes + step.outside - ideal_s - best.outside * share
    single = ranks == 1
    return TimeBreakdown(
        linear=best.step / ranks,
        schedule=best.step * (share - 1 / ranks),
        recomputation=step.recomputed * stretch - best.recomputed * share,
        microbatches=None if same is None else (same.once - best.once) * share,
        contention=step.once * stretch - alone.once * share,
        imbalance=ideal_s - step.passes * stretch,
        waits=0.0 if single else waits,
        allreduce=step.allreduce,
        rest=step.step
        - step.passes
        - step.outside
        - step.allreduce
        - (best.step - best.passes - best.outside) * share
        + (waits if single else 0.0),
    )

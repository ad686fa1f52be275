"""A step of a pipeline or of replicas taken apart: where it is slower than ranks that lose nothing.

From the step that the best sequential run would take on as many ranks (linear) to the one that was
measured, in parts that add up. With n = R*S ranks and f = (V*M+S-1)/(V*M), by which a pipeline of
equal stages takes longer than its passes (Huang et al. 2019, section 2.3; of V parts a stage
Narayanan et al. 2021, section 2.2; of zero-bubble and zbv what their order of actions gives for
the measured ratio of forwards, gradients of inputs and gradients of weights, Qi et al. 2024):

- schedule: linear * (f-1), so that linear and schedule are the step at the bound;
- recomputation: forwards computed again in the ranks' passes beyond those of the best sequential
  run's, of which the two parts below are without;
- micro-batches: what the sequential run's passes take longer in M micro-batches, * f/n;
- company: what the ranks' passes take longer than those of that run, * f/n;
- imbalance: the ideal step of the measured passes, less that of equal stages;
- waits: passes of a rank and its time outside spans, less the ideal step and the sequential run's
  share of that time: transfers, and ranks that come late. One rank waits for nobody: of it this is
  rest;
- all-reduce; and the rest, such as the optimizer, less the sequential run's share of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

PREFIX = "lost_"
"""Of the columns in the summary."""

_ROUNDING = 1e-12
"""Share of a step: differences of sums in double precision are below it, clocks are above."""


@dataclass(frozen=True)
class StepSeconds:
    """Of a step of one configuration, seconds: of each the mean of the runs' means."""

    step: float
    passes: float
    """Forward and backward, of a rank on average."""
    outside: float = 0.0
    """Of a rank on average, outside its spans: waiting for others, and what lies between spans."""
    allreduce: float = 0.0
    """Of a rank on average."""
    recomputed: float = 0.0
    """Of the passes, forwards computed again."""

    @property
    def once(self) -> float:
        """Passes without forwards computed again."""
        return self.passes - self.recomputed

    def times(self, factor: float) -> StepSeconds:
        """Of a step of `factor` times the samples."""
        return StepSeconds(*(factor * getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True)
class LostTime:
    """Seconds of a step, which add up to it; what ran faster than expected is below 0."""

    linear: float
    schedule: float
    recomputation: float
    microbatches: float | None
    """None where no sequential run in as many micro-batches was measured: part of `company`."""
    company: float
    imbalance: float
    waits: float
    allreduce: float
    rest: float

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) or 0.0 for field in fields(self))

    def columns(self) -> dict[str, float | None]:
        """By column of the summary; what is but rounding of the step is 0."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        least = _ROUNDING * abs(self.total)
        return {
            f"{PREFIX}{name}_s": 0.0 if part is not None and abs(part) <= least else part
            for name, part in parts.items()
        }


COLUMNS = tuple(f"{PREFIX}{field.name}_s" for field in fields(LostTime))


def take_apart(
    step: StepSeconds,
    ideal_s: float,
    best: StepSeconds,
    same: StepSeconds | None,
    *,
    ranks: int,
    stretch: float,
) -> LostTime:
    """`step` between `ranks` ranks, whose schedule takes `stretch` times its passes.

    `ideal_s` is the schedule with the measured passes and nothing else. `best` is the best
    sequential run, `same` the one in as many micro-batches, both for as many samples as `step`.
    """
    share = stretch / ranks
    alone = best if same is None else same
    waits = step.passes + step.outside - ideal_s - best.outside * share
    nobody = ranks == 1
    return LostTime(
        linear=best.step / ranks,
        schedule=best.step * (share - 1 / ranks),
        recomputation=step.recomputed * stretch - best.recomputed * share,
        microbatches=None if same is None else (same.once - best.once) * share,
        company=step.once * stretch - alone.once * share,
        imbalance=ideal_s - step.passes * stretch,
        waits=0.0 if nobody else waits,
        allreduce=step.allreduce,
        rest=step.step
        - step.passes
        - step.outside
        - step.allreduce
        - (best.step - best.passes - best.outside) * share
        + (waits if nobody else 0.0),
    )

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

from analysis.summary.baseline_and_speedup import bound_of
from analysis.summary.configurations import Configuration

COLUMNS = {
    "lost_linear_s": "linear",
    "lost_schedule_s": "schedule",
    "lost_recomputation_s": "recomputation",
    "lost_microbatches_s": "micro-batches",
    "lost_contention_s": "contention",
    "lost_imbalance_s": "imbalance",
    "lost_waits_s": "waits, transfers",
    "lost_allreduce_s": "all-reduce",
    "lost_rest_s": "rest",
}
"""Columns of the summary with the parts, from the linear ideal to the measured step; in words."""
_ROUNDING = 1e-12
"""Share of a step below which a difference of sums is rounding."""


def break_down(
    row: Configuration, best: Configuration | None, same: Configuration | None
) -> dict[str, float | None]:
    """The parts of a training step, in seconds that add up to it, by column of the summary.

    A part that is faster than expected is negative, and one that is only rounding is 0. `best` is
    the best sequential run, `same` the one in as many micro-batches as `row`; without `same` its
    part is None, and in `contention`. All are None without the seconds that they follow from.
    """
    step, alone, ideal_s = _seconds(row, row), _seconds(best, row), row.mean("ideal_mean_s")
    most = bound_of(row)
    if row.phase != "train" or step is None or alone is None or ideal_s is None or most is None:
        return dict.fromkeys(COLUMNS)
    in_as_many = _seconds(same, row)
    compared = alone if in_as_many is None else in_as_many
    ranks = row.layout.world_size
    stretch = ranks / most
    share = stretch / ranks
    waits = step["passes"] + step["outside"] - ideal_s - alone["outside"] * share
    rest = step["step"] - step["passes"] - step["outside"] - step["allreduce"]
    rest -= (alone["step"] - alone["passes"] - alone["outside"]) * share
    parts = (
        alone["step"] / ranks,
        alone["step"] * (share - 1 / ranks),
        step["recomputed"] * stretch - alone["recomputed"] * share,
        (compared["once"] - alone["once"]) * share,
        step["once"] * stretch - compared["once"] * share,
        ideal_s - step["passes"] * stretch,
        0.0 if ranks == 1 else waits,
        step["allreduce"],
        rest + (waits if ranks == 1 else 0.0),
    )
    least = _ROUNDING * abs(step["step"])
    values = (0.0 if abs(part) <= least else part for part in parts)
    unknown = {} if in_as_many is not None else {"lost_microbatches_s": None}
    return dict(zip(COLUMNS, values, strict=True)) | unknown


def _seconds(one: Configuration | None, row: Configuration) -> dict[str, float] | None:
    """Seconds of a step of `one` and its parts, for as many samples as a step of `row` has.

    `outside` is outside a rank's spans: waiting for others, and what lies between spans; `once` are
    passes without recomputed forwards. None where stages were not timed one by one.
    """
    names = ("passes_s", "outside_s", "allreduce_s", "samples")
    parts = [one.mean(name) if one else None for name in names]
    mine = row.mean("samples")
    if one is None or mine is None or None in parts:
        return None
    passes, outside, allreduce, samples = (part or 0.0 for part in parts)
    recomputed = one.mean("recompute_s") or 0.0
    seconds = {
        "step": one.sample.mean.value,
        "passes": passes,
        "outside": outside,
        "allreduce": allreduce,
        "recomputed": recomputed,
        "once": passes - recomputed,
    }
    return {name: mine / samples * value for name, value in seconds.items()}

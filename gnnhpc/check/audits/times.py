"""What ranks measured: whether step times can be, noise, drift, the audit's own cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.records.schema import Check

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, above which a cell is noisy."""
DRIFT = 0.10
"""Change of the median step time, first to last third, above which a cell has drift."""


def times(observations: Sequence[RankObservations]) -> Check:
    """What a rank did in a step fits into it, steps follow one another, and the run holds all."""
    wrong = []
    for each in observations:
        rank = f"rank {each.rank}"
        if each.overfull_steps:
            wrong.append(f"{rank} computed longer than {each.overfull_steps} steps lasted")
        if each.overlapping_steps:
            wrong.append(f"{each.overlapping_steps} steps of {rank} began before their time")
        # Not `>`: a sum that is no number is wrong too.
        if not each.all_steps_s <= each.run_s:
            wrong.append(
                f"the steps of {rank} add up to {each.all_steps_s:.3f} s of a run of "
                f"{each.run_s:.3f} s"
            )
    if wrong:
        return Check("step times", "invalid", "; ".join(wrong), {})
    return Check("step times", "ok", "what ranks did fits into the steps, these into the run", {})


def noise(observations: Sequence[RankObservations]) -> Check:
    """Processor time short of busy time on one thread, or time the host took, is noise."""
    reasons = []
    for each in observations:
        if each.steal_share is not None and each.steal_share > NOISY_SHARE:
            reasons.append(f"rank {each.rank}: {each.steal_share:.1%} stolen by the host")
        if each.threads == 1 and each.cpu_share is not None and each.cpu_share < 1 - NOISY_SHARE:
            reasons.append(f"rank {each.rank}: {each.cpu_share:.0%} processor time of busy time")
    values = {
        str(each.rank): {
            "cpu": each.cpu_share,
            "steal": each.steal_share,
            "switches": each.switches,
        }
        for each in observations
    }
    if reasons:
        return Check("noisy", "suspect", "; ".join(reasons), values)
    return Check("noise", "ok", "processor time accounts for busy time", values)


def drift(step_s: Sequence[float]) -> Check:
    third = len(step_s) // 3
    if third < 3:
        return Check("drift", "unknown", f"{len(step_s)} steps are too few to tell", {})
    first = statistics.median(step_s[:third])
    last = statistics.median(step_s[-third:])
    change = last / first - 1
    values = {"first_third_s": first, "last_third_s": last}
    if abs(change) > DRIFT:
        return Check(
            "drift", "suspect", f"median step time changed {change:+.0%} over the run", values
        )
    return Check("drift", "ok", f"median step time changed {change:+.1%} over the run", values)


def cost(observations: Sequence[RankObservations]) -> Check:
    """The audit's own time; it is outside the measured steps, so it cannot change their times."""
    shares = [each.observing_s / each.run_s if each.run_s > 0 else 0.0 for each in observations]
    detail = f"the audit took {max(shares):.2%} of the time, outside every timed step"
    return Check("cost", "ok", detail, {"share": max(shares)})

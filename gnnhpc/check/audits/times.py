"""What ranks measured: whether step times can be, noise, drift, the audit's own cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.records.schema import Check

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, above which a cell is noisy."""
BETWEEN_SHARE = 0.5
"""Processor time between two steps, of that within one, above which a step leaves work out."""
BETWEEN_S = 0.005
"""And above this: gathering, recording and printing take about a millisecond."""
DRIFT = 0.10
"""Change of the median step time, first to last third, above which a cell has drift."""


def times(observations: Sequence[RankObservations]) -> Check:
    """What a rank did in a step fits into it, steps follow one another, and the run holds all."""
    wrong = []
    for each in observations:
        rank = f"rank {each.rank}"
        if each.time_faults:
            # They know the cause; what follows from it need not be told.
            wrong += [f"{rank}: {fault}" for fault in each.time_faults]
            continue
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


def spans(observations: Sequence[RankObservations]) -> Check:
    """What spans call forward is the stage's forward, and no waiting; where the times hold."""
    loose = [
        f"rank {each.rank}: {each.loose_forward}"
        for each in observations
        if each.loose_forward and not each.time_faults
    ]
    if loose:
        return Check("spans", "suspect", "; ".join(loose), {})
    return Check("spans", "ok", "forward spans hold forwards", {})


def between(observations: Sequence[RankObservations]) -> Check:
    """Work that is moved out of the measured steps is still done by the loop, between them."""
    reasons = []
    for each in observations:
        within = statistics.median(each.step_cpu_s) if each.step_cpu_s else 0.0
        outside = each.between_steps_cpu_s
        if outside > BETWEEN_SHARE * within + BETWEEN_S:
            reasons.append(
                f"rank {each.rank} computed {outside:.4f} s between two steps and {within:.4f} s "
                "in one"
            )
    values = {str(each.rank): each.between_steps_cpu_s for each in observations}
    if reasons:
        return Check("between_steps", "suspect", "; ".join(reasons), values)
    return Check("between_steps", "ok", "the loop computes little between two steps", values)


def noise(observations: Sequence[RankObservations]) -> Check:
    """Time that the host took, or without a processor, or asleep while computing, is noise.

    The share of processor time can be judged on one thread only: several wait for one another.
    """
    reasons = []
    for each in observations:
        rank, steal, delay = f"rank {each.rank}", each.steal_share, each.run_delay_share
        if steal is not None and steal > NOISY_SHARE:
            reasons.append(f"{rank}: {steal:.1%} stolen by the host")
        if delay is not None and delay > NOISY_SHARE:
            reasons.append(
                f"{rank} was ready to run for {delay:.1%} of its steps while other threads had its "
                "processors"
            )
        elif (
            each.threads_wanted == 1
            and each.cpu_share is not None
            and each.cpu_share < 1 - NOISY_SHARE
        ):
            reasons.append(
                f"{rank}: {each.cpu_share:.0%} processor time of computing time; "
                + _rest_of_computing(each)
            )
    values = {
        str(each.rank): {
            "cpu": each.cpu_share,
            "steal": each.steal_share,
            "run_delay": each.run_delay_share,
            "switches": each.switches,
        }
        for each in observations
    }
    if reasons:
        return Check("noisy", "suspect", "; ".join(reasons), values)
    return Check("noise", "ok", "processor time accounts for computing time", values)


def _rest_of_computing(each: RankObservations) -> str:
    """What took most of the computing time that was no processor time."""
    if each.run_delay_share is None or each.cpu_share is None or each.compute_share is None:
        return "what took the rest is not known"
    missing = (1 - each.cpu_share) * each.compute_share
    if each.run_delay_share > missing / 2:
        return "other threads had its processors"
    return "it slept for the rest: page faults or storage"


def drift(observations: Sequence[RankObservations]) -> Check:
    """First third of the training steps against the last, and which part of a step has changed."""
    steps = observations[0].step_s
    if len(steps) < 9:
        return Check("drift", "unknown", f"{len(steps)} steps are too few to tell", {})
    first, last = _thirds(steps)
    change = last / first - 1
    values = {"first_third_s": first, "last_third_s": last}
    if not abs(change) <= DRIFT:
        why = _cause_of_drift(observations, last - first)
        detail = f"median step time changed {change:+.0%} over the run: {why}"
        return Check("drift", "suspect", detail, values)
    return Check("drift", "ok", f"median step time changed {change:+.1%} over the run", values)


def _cause_of_drift(observations: Sequence[RankObservations], change_s: float) -> str:
    """What accounts for half of the change or more, on the rank whose computing changed most."""

    def change(seconds: Sequence[float]) -> float:
        first, last = _thirds(seconds)
        return (last - first) / change_s

    most = max(observations, key=lambda each: change(each.step_compute_s))
    rank = f"rank {most.rank}"
    if change(most.step_compute_s) < 0.5:
        return "not of computing, but of transfers and waiting"
    if change(most.step_cpu_s) < 0.5:
        return f"{rank} had its processors for another share of its computing time"
    return f"{rank} computed for another processor time: other work, clock rate or memory"


def _thirds(seconds: Sequence[float]) -> tuple[float, float]:
    """Medians of the first third and of the last."""
    third = len(seconds) // 3
    return statistics.median(seconds[:third]), statistics.median(seconds[-third:])


def cost(observations: Sequence[RankObservations]) -> Check:
    """The audit's own time; it is outside the measured steps, so it cannot change their times."""
    shares = [each.observing_s / each.run_s if each.run_s > 0 else 0.0 for each in observations]
    detail = f"the audit took {max(shares):.2%} of the time, outside every timed step"
    return Check("cost", "ok", detail, {"share": max(shares)})

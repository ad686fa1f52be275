"""What ranks measured: whether step times can be, noise, drift, the audit's own cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gnnhpc.check.level_shift import Stretch, most_different_stretch
from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, above which a cell is noisy."""
EARLY_SHARE, EARLY_S = 0.2, 1e-3
"""Of an all-reduce, before all gradients were ready, above which it is booked too early; ranks
leave a barrier some tenths of a millisecond apart."""
SUM_S = 1e-6
"""Of the same seconds, added up in another order."""
BETWEEN_SHARE = 0.5
"""Processor time between two steps, of that within one, above which a step leaves work out."""
BETWEEN_S = 0.005
"""And above this: gathering, recording and printing take about a millisecond."""
DRIFT = 0.05
"""Change of the step time, in a stretch of the run, below which nobody need know of it."""


def times(observations: Sequence[RankObservations], layout: Layout) -> Check:
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
    wrong += _other_allreduces(observations, layout)
    if wrong:
        return Check("step times", "invalid", "; ".join(wrong), {})
    return Check("step times", "ok", "what ranks did fits into the steps, these into the run", {})


def draws(observations: Sequence[RankObservations]) -> Check:
    """Mini-batches are drawn within what is timed: not for longer, by all that draw at a time."""
    wrong = [
        f"rank {each.rank}: its mini-batches took {each.drawn_s:.3f} s, steps and waits for them "
        f"{each.drawing_s:.3f} s, with {max(1, each.workers)} drawing at a time"
        for each in observations
        if not each.drawn_s <= max(1, each.workers) * each.drawing_s
    ]
    if wrong:
        return Check("draws", "invalid", "; ".join(wrong), {})
    drawn = [each.drawn_s for each in observations]
    detail = f"mini-batches took {max(drawn):.3f} s at most, all within timed steps"
    return Check("draws", "ok", detail, {"drawn_s": drawn})


def _other_allreduces(observations: Sequence[RankObservations], layout: Layout) -> Iterator[str]:
    """Where a rank's all-reduces are not what is left of them once the last of the stage's replicas
    had come, by what each of these says of itself."""
    for stage in range(layout.stages):
        ranks = layout.replica_ranks(stage)
        arrivals: dict[int, list[float]] = {}
        for rank in ranks:
            for each in observations[rank].shared:
                arrivals.setdefault(each.step, []).append(each.arrival_s)
        for rank in ranks:
            expected = [
                (each, each.reduced_s(max(arrivals[each.step])))
                for each in observations[rank].shared
            ]
            # Not `>`: what is no number is wrong too.
            wrong = [pair for pair in expected if not abs(pair[0].allreduce_s - pair[1]) <= SUM_S]
            if wrong:
                first, reduced_s = wrong[0]
                yield (
                    f"rank {rank}: allreduce_s that does not begin with its stage's last replica "
                    f"in {len(wrong)} steps, first train step {first.step}: "
                    f"{first.allreduce_s:.6f} s, {reduced_s:.6f} s by what the replicas say"
                )


def spans(observations: Sequence[RankObservations], layout: Layout) -> Check:
    """What spans call forward, backward or all-reduce is no waiting; where the times hold."""
    loose = [
        f"rank {each.rank}: {each.loose_spans}"
        for each in observations
        if each.loose_spans and not each.time_faults
    ]
    if not any(each.time_faults for each in observations):
        loose += _early_allreduces(observations, layout)
    if loose:
        return Check("spans", "suspect", "; ".join(loose), {})
    return Check("spans", "ok", "spans hold the work they are named for", {})


def _early_allreduces(observations: Sequence[RankObservations], layout: Layout) -> Iterator[str]:
    """Where most all-reduces hold waiting for a replica whose gradients were not ready yet.

    Each replica's readiness counts from the barrier that all have left together.
    """
    for stage in range(layout.stages):
        ranks = layout.replica_ranks(stage)
        steps = [
            each
            for each in zip(*(observations[rank].shared for rank in ranks), strict=False)
            if all(one.ready_s is not None for one in each)
        ]
        for place, rank in enumerate(ranks):
            early = [
                each[place].allreduce_s
                - each[place].wall_s
                + max(one.ready_s or 0.0 for one in each)
                for each in steps
            ]
            told = [each[place].allreduce_s for each in steps]
            wrong = [
                (e, t)
                for e, t in zip(early, told, strict=True)
                if e > EARLY_SHARE * t and e > EARLY_S
            ]
            if steps and len(wrong) > len(steps) / 2:
                waited, held = (sum(each) for each in zip(*wrong, strict=True))
                yield (
                    f"rank {rank}: all-reduces of {len(wrong)} steps hold {held:.3f} s, of which "
                    f"{waited:.3f} s before the last replica's gradients were ready"
                )


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
    """Time that the host or other processes took, or asleep while computing, is noise.

    Where this job's own threads, which transfer and load, had a rank's processors, that is part of
    what is measured. The share of processor time can be judged on one thread only: several wait for
    one another.
    """
    reasons = []
    for each in observations:
        rank, steal = f"rank {each.rank}", each.steal_share
        if steal is not None and steal > NOISY_SHARE:
            reasons.append(f"{rank}: {steal:.1%} stolen by the host")
        reasons += _lack_of_processor(each, share_of_others(each, observations))
    values = {
        str(each.rank): {
            "cpu": each.cpu_share,
            "steal": each.steal_share,
            "run_delay": each.run_delay_share,
            "others": share_of_others(each, observations),
            "switches": each.switches,
        }
        for each in observations
    }
    if reasons:
        return Check("noisy", "suspect", "; ".join(reasons), values)
    return Check("noise", "ok", "no other process took processor time from the ranks", values)


def share_of_others(
    each: RankObservations, observations: Sequence[RankObservations]
) -> float | None:
    """Processors that processes other than this job's used, on average, of those of a rank.

    What the clock cannot resolve is taken off; None where the system does not say.
    """
    use = each.processor_use
    if use is None or use.seconds <= 0:
        return None
    neighbours = [
        other.processor_use
        for other in observations
        if other.machine == each.machine and set(other.cpus) & set(each.cpus)
    ]
    if not all(other and other.seconds > 0 for other in neighbours):
        return None
    ours = sum(other.by_process_s / other.seconds for other in neighbours if other)
    return max(0.0, (use.by_anybody_s - use.resolution_s) / use.seconds - ours)


def _lack_of_processor(each: RankObservations, others: float | None) -> list[str]:
    """Why a rank had no processor when it could have computed, where that is noise."""
    rank, delay = f"rank {each.rank}", each.run_delay_share
    if delay is not None and delay > NOISY_SHARE and _may_have_taken(others, delay):
        return [
            f"{rank} was ready to run for {delay:.1%} of its steps while {_whose(others)} had its "
            "processors"
        ]
    if each.threads_wanted != 1 or each.cpu_share is None or each.cpu_share >= 1 - NOISY_SHARE:
        return []
    share = f"{rank}: {each.cpu_share:.0%} processor time of computing time; "
    if delay is None or each.compute_share is None:
        return [share + "what took the rest is not known"]
    missing = (1 - each.cpu_share) * each.compute_share
    if delay <= missing / 2:
        return [share + "it slept for the rest: page faults or storage"]
    if not _may_have_taken(others, delay):
        return []
    return [share + f"{_whose(others)} had its processors"]


def _may_have_taken(others: float | None, delay: float) -> bool:
    """Whether others used as much processor time as half of what the rank waited, or may have."""
    return others is None or others > delay / 2


def _whose(others: float | None) -> str:
    return "other threads" if others is None else "other processes"


def drift(observations: Sequence[RankObservations], before: Sequence[float] = ()) -> Check:
    """Whether a stretch of the training steps is slower or faster than chance would make it.

    `before` are the steps of the attempts that this one went on from, where those count too.
    """
    steps = [*before, *observations[0].step_s]
    found = most_different_stretch(steps)
    if found is None:
        return Check("drift", "unknown", f"{len(steps)} steps are too few to tell", {})
    values = asdict(found)
    over = ", over all attempts," if before else ""
    if not found.beyond_chance or abs(found.change) <= DRIFT:
        detail = f"no stretch of the run{over} differs more than steps do"
        return Check("drift", "ok", detail, values)
    until = "on" if found.stop == len(steps) else f"to step {found.stop}"
    of = " of all attempts" if before else ""
    # Of earlier attempts no more is known than how long their steps were.
    cause = (
        f"; the last attempt has those from {len(before) + 1} on"
        if before
        else f": {_cause_of_drift(observations, found)}"
    )
    detail = (
        f"from step {found.first + 1} {until}, of {len(steps)} after the warm-up{of}, steps took "
        f"{found.change:+.0%}{cause}"
    )
    return Check("drift", "suspect", detail, values)


def _cause_of_drift(observations: Sequence[RankObservations], stretch: Stretch) -> str:
    """What accounts for half of the change or more, on the rank whose computing changed most."""
    change_s = _change(observations[0].step_s, stretch)

    def share(seconds: Sequence[float]) -> float:
        return _change(seconds, stretch) / change_s

    most = max(observations, key=lambda each: share(each.step_compute_s))
    rank = f"rank {most.rank}"
    if share(most.step_compute_s) < 0.5:
        return "not of computing, but of transfers and waiting"
    if share(most.step_cpu_s) < 0.5:
        return f"{rank} had its processors for another share of its computing time"
    return f"{rank} computed for another processor time: other work, clock rate or memory"


def _change(seconds: Sequence[float], stretch: Stretch) -> float:
    """Mean seconds within the stretch, less those outside."""
    inside = statistics.fmean(seconds[stretch.first : stretch.stop])
    return inside - statistics.fmean([*seconds[: stretch.first], *seconds[stretch.stop :]])


def cost(observations: Sequence[RankObservations]) -> Check:
    """The audit's own time; it is outside the measured steps, so it cannot change their times."""
    shares = [each.observing_s / each.run_s if each.run_s > 0 else 0.0 for each in observations]
    detail = f"the audit took {max(shares):.2%} of the time, outside every timed step"
    return Check("cost", "ok", detail, {"share": max(shares)})

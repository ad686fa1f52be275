"""The audit: checks of all ranks' observations, one for each defect of the published studies."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layout import Layout
from gnnhpc.core.outline import LayerOutline, parameter_count
from gnnhpc.records.schema import Check

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, above which a cell is noisy."""
DRIFT = 0.10
"""Change of the median step time, first to last third, above which a cell has drift."""


def audit(
    observations: Sequence[RankObservations],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
    graph: dict[str, Any],
) -> list[Check]:
    """All checks, from observations in rank order; `planned` are the layers of each stage."""
    checks = [
        _parameters(observations, outlines, layout),
        _cut(observations, outlines, layout, planned),
        _labels(observations),
        _samples(observations),
        _replicas(observations, layout),
        _gradients(observations),
        _loss(observations),
        _times(observations),
        _reductions(observations, layout),
        _kernels(observations),
        _threads(observations),
        _noise(observations),
        _drift(observations[0].step_s),
        _cost(observations),
    ]
    if graph:
        checks.append(_edges(graph))
    return checks


def _parameters(
    observations: Sequence[RankObservations], outlines: Sequence[LayerOutline], layout: Layout
) -> Check:
    expected = parameter_count(outlines)
    built = [
        sum(observations[rank].parameters for rank in layout.pipeline_ranks(replica))
        for replica in range(layout.replicas)
    ]
    wanted = built[0] if expected is None else expected
    comparison = "its outline does not say" if expected is None else f"{expected} in the model"
    return Check(
        "parameters",
        "ok" if all(count == wanted for count in built) else "invalid",
        f"{built} built over the stages of each replica, {comparison}",
        {"expected": expected, "built": built},
    )


def _cut(
    observations: Sequence[RankObservations],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
) -> Check:
    names = [layer.name for layer in outlines]
    wrong = [
        each.rank
        for each in observations
        if each.layers != [names[i] for i in planned[layout.stage_of(each.rank)]]
    ]
    counts = [len(part) for part in planned]
    whole = sorted(i for part in planned for i in part) == list(range(len(names)))
    if wrong or not whole:
        return Check("cut", "invalid", f"ranks {wrong} do not hold the layers planned {counts}", {})
    return Check("cut", "ok", f"layers a stage: {counts} of {len(names)}", {"balance": counts})


def _labels(observations: Sequence[RankObservations]) -> Check:
    wrong = max(each.mismatched_batches for each in observations)
    if wrong:
        return Check(
            "labels",
            "invalid",
            f"{wrong} mini-batches whose labels at the last stage are not those of the first "
            "stage's inputs",
            {"mismatched": wrong},
        )
    return Check("labels", "ok", "labels belong to inputs in every mini-batch", {})


def _samples(observations: Sequence[RankObservations]) -> Check:
    repeated = max(each.repeated_samples for each in observations)
    if repeated:
        return Check(
            "samples",
            "invalid",
            f"{repeated} samples were seen more than once in an epoch: replicas are not sharded",
            {"repeated": repeated},
        )
    return Check("samples", "ok", "no sample was seen twice in an epoch", {})


def _replicas(observations: Sequence[RankObservations], layout: Layout) -> Check:
    wrong = max(each.unequal_gradients for each in observations)
    if wrong:
        return Check(
            "replicas",
            "invalid",
            f"gradient norms differed between replicas in {wrong} steps and stages",
            {"unequal": wrong},
        )
    return Check("replicas", "ok", f"one gradient on {layout.replicas} replicas", {})


def _gradients(observations: Sequence[RankObservations]) -> Check:
    """A stage that trains must run backward and have a gradient that is not zero."""
    without = [
        each.rank
        for each in observations
        if each.trained_parameters
        and (
            not each.median_grad_norm
            or not math.isfinite(each.median_grad_norm)
            or (each.step_s and each.backward_s <= 0.0)
        )
    ]
    norms = {str(each.rank): each.median_grad_norm for each in observations}
    if without:
        return Check(
            "gradients",
            "invalid",
            f"ranks {without} have parameters but no gradient: backward did not reach them",
            norms,
        )
    return Check("gradients", "ok", "every stage with parameters has a gradient", norms)


def _times(observations: Sequence[RankObservations]) -> Check:
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


def _loss(observations: Sequence[RankObservations]) -> Check:
    wrong = max(each.differing_losses for each in observations)
    if wrong:
        return Check(
            "loss",
            "invalid",
            f"in {wrong} steps the loss that was differentiated is not the mean over labelled "
            "samples that is reported: summed micro-batches, or a mean of masked means",
            {"steps": wrong},
        )
    return Check("loss", "ok", "the loss reported is the one that was differentiated", {})


def _reductions(observations: Sequence[RankObservations], layout: Layout) -> Check:
    wanted = 1 if layout.replicas > 1 else 0
    wrong = [
        each.rank
        for each in observations
        if each.trained_parameters and each.reductions != wanted * each.train_steps
    ]
    if wrong:
        each = observations[wrong[0]]
        return Check(
            "all-reduce",
            "suspect",
            f"rank {each.rank} reduced {each.reductions} times in {each.train_steps} steps, "
            f"{wanted} a step expected",
            {},
        )
    return Check("all-reduce", "ok", f"{wanted} a step", {})


def _kernels(observations: Sequence[RankObservations]) -> Check:
    """One rank without a compiler computes the same, but its time is another program's."""
    ranks: dict[str, list[int]] = {}
    for each in observations:
        ranks.setdefault(each.implementation, []).append(each.rank)
    values = {"implementations": ranks}
    if len(ranks) > 1:
        found = ", ".join(f"{name} on ranks {held}" for name, held in ranks.items())
        return Check("kernels", "invalid", f"ranks computed by different code: {found}", values)
    return Check("kernels", "ok", f"{observations[0].implementation} on every rank", values)


def _threads(observations: Sequence[RankObservations]) -> Check:
    wrong = [each.rank for each in observations if each.threads != each.threads_wanted]
    if wrong:
        each = observations[wrong[0]]
        return Check(
            "threads",
            "invalid",
            f"rank {each.rank} ran {each.threads} threads, {each.threads_wanted} were asked for",
            {},
        )
    pinned = [each for each in observations if each.threads > len(each.cpus)]
    if pinned:
        each = pinned[0]
        return Check(
            "oversubscribed",
            "suspect",
            f"rank {each.rank} on {each.host}: {each.threads} threads on the {len(each.cpus)} CPUs "
            "it may use, whatever its neighbours have",
            {"ranks": [each.rank for each in pinned]},
        )
    by_host: dict[str, list[RankObservations]] = {}
    for each in observations:
        by_host.setdefault(each.host, []).append(each)
    oversubscribed = []
    for host, ranks in by_host.items():
        cpus = {cpu for each in ranks for cpu in each.cpus}
        if sum(each.threads for each in ranks) > len(cpus):
            oversubscribed.append(
                f"{host}: {sum(each.threads for each in ranks)} threads on {len(cpus)} CPUs"
            )
    if oversubscribed:
        return Check(
            "oversubscribed", "suspect", "; ".join(oversubscribed), {"hosts": oversubscribed}
        )
    counts = Counter(each.threads for each in observations)
    return Check("threads", "ok", f"threads a rank: {sorted(counts)}", {})


def _noise(observations: Sequence[RankObservations]) -> Check:
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


def _drift(step_s: Sequence[float]) -> Check:
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


def _cost(observations: Sequence[RankObservations]) -> Check:
    """The audit's own time; it is outside the measured steps, so it cannot change their times."""
    shares = [each.observing_s / each.run_s if each.run_s > 0 else 0.0 for each in observations]
    detail = f"the audit took {max(shares):.2%} of the time, outside every timed step"
    return Check("cost", "ok", detail, {"share": max(shares)})


def _edges(graph: dict[str, Any]) -> Check:
    kept = float(graph["edges_kept"])
    detail = f"{graph['mode']} chunks kept {kept:.1%} of the edges"
    if kept < 1.0:
        return Check("edges-lost", "suspect", detail, {"edges_kept": kept})
    return Check("edges", "ok", detail, {"edges_kept": kept})

"""Verdicts on all ranks' findings: each defect of the published studies has its check."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gnnhpc.check.observe import Findings
from gnnhpc.core.layout import Layout
from gnnhpc.core.outline import LayerOutline, parameter_count
from gnnhpc.records.schema import Check

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, beyond which a cell is called noisy."""
DRIFT = 0.10
"""Change of the median step time, first to last third, beyond which a cell is flagged."""


def judge(
    findings: Sequence[Findings],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
    graph: dict[str, Any],
) -> list[Check]:
    """All verdicts, from all ranks' findings in rank order."""
    checks = [
        _parameters(findings, outlines, layout),
        _cut(findings, outlines, layout, planned),
        _labels(findings),
        _samples(findings),
        _replicas(findings, layout),
        _gradients(findings),
        _loss(findings),
        _reductions(findings, layout),
        _threads(findings),
        _noise(findings),
        _drift(findings[0].walls),
        _cost(findings),
    ]
    if graph:
        checks.append(_edges(graph))
    return checks


def _parameters(
    findings: Sequence[Findings], outlines: Sequence[LayerOutline], layout: Layout
) -> Check:
    expected = parameter_count(outlines)
    built = [
        sum(findings[rank].parameters for rank in layout.pipeline_ranks(replica))
        for replica in range(layout.replicas)
    ]
    wanted = built[0] if expected is None else expected
    told = "its outline does not say" if expected is None else f"{expected} in the model"
    return Check(
        "parameters",
        "ok" if all(count == wanted for count in built) else "invalid",
        f"{built} built over the stages of each replica, {told}",
        {"expected": expected, "built": built},
    )


def _cut(
    findings: Sequence[Findings],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
) -> Check:
    names = [layer.name for layer in outlines]
    wrong = [
        f.rank for f in findings if f.layers != [names[i] for i in planned[layout.stage_of(f.rank)]]
    ]
    counts = [len(part) for part in planned]
    whole = sorted(i for part in planned for i in part) == list(range(len(names)))
    if wrong or not whole:
        return Check("cut", "invalid", f"ranks {wrong} do not hold the layers planned {counts}", {})
    return Check("cut", "ok", f"layers a stage: {counts} of {len(names)}", {"balance": counts})


def _labels(findings: Sequence[Findings]) -> Check:
    wrong = max(f.mismatched_batches for f in findings)
    if wrong:
        return Check(
            "labels",
            "invalid",
            f"{wrong} mini-batches whose labels at the last stage are not those of the first "
            "stage's inputs",
            {"mismatched": wrong},
        )
    return Check("labels", "ok", "labels belong to inputs in every mini-batch", {})


def _samples(findings: Sequence[Findings]) -> Check:
    repeated = max(f.repeated_samples for f in findings)
    if repeated:
        return Check(
            "samples",
            "invalid",
            f"{repeated} samples were seen more than once in an epoch: replicas are not sharded",
            {"repeated": repeated},
        )
    return Check("samples", "ok", "no sample was seen twice in an epoch", {})


def _replicas(findings: Sequence[Findings], layout: Layout) -> Check:
    wrong = max(f.unequal_gradients for f in findings)
    if wrong:
        return Check(
            "replicas",
            "invalid",
            f"gradient norms differed between replicas in {wrong} steps and stages",
            {"unequal": wrong},
        )
    return Check("replicas", "ok", f"one gradient on {layout.replicas} replicas", {})


def _gradients(findings: Sequence[Findings]) -> Check:
    """A stage with parameters must run backward and have a gradient that is not nothing."""
    silent = [
        f.rank
        for f in findings
        if f.parameters
        and (
            not f.median_grad_norm
            or not math.isfinite(f.median_grad_norm)
            or (f.walls and f.backward_s <= 0.0)
        )
    ]
    norms = {str(f.rank): f.median_grad_norm for f in findings}
    if silent:
        return Check(
            "gradients",
            "invalid",
            f"ranks {silent} have parameters but no gradient: backward did not reach them",
            norms,
        )
    return Check("gradients", "ok", "every stage with parameters has a gradient", norms)


def _loss(findings: Sequence[Findings]) -> Check:
    wrong = max(f.other_losses for f in findings)
    if wrong:
        return Check(
            "loss",
            "invalid",
            f"in {wrong} steps the loss that was differentiated is not the mean over labelled "
            "samples that is reported: summed micro-batches, or a mean of masked means",
            {"steps": wrong},
        )
    return Check("loss", "ok", "the loss reported is the one that was differentiated", {})


def _reductions(findings: Sequence[Findings], layout: Layout) -> Check:
    wanted = 1 if layout.replicas > 1 else 0
    wrong = [f.rank for f in findings if f.parameters and f.reductions != wanted * f.train_steps]
    if wrong:
        rank = findings[wrong[0]]
        return Check(
            "all-reduce",
            "suspect",
            f"rank {rank.rank} reduced {rank.reductions} times in {rank.train_steps} steps, "
            f"{wanted} a step expected",
            {},
        )
    return Check("all-reduce", "ok", f"{wanted} a step", {})


def _threads(findings: Sequence[Findings]) -> Check:
    wrong = [f.rank for f in findings if f.threads != f.threads_wanted]
    if wrong:
        f = findings[wrong[0]]
        return Check(
            "threads",
            "invalid",
            f"rank {f.rank} ran {f.threads} threads, {f.threads_wanted} were asked for",
            {},
        )
    by_host: dict[str, list[Findings]] = {}
    for f in findings:
        by_host.setdefault(f.host, []).append(f)
    crowded = []
    for host, ranks in by_host.items():
        cpus = {cpu for f in ranks for cpu in f.cpus}
        if sum(f.threads for f in ranks) > len(cpus):
            crowded.append(f"{host}: {sum(f.threads for f in ranks)} threads on {len(cpus)} CPUs")
    if crowded:
        return Check("oversubscribed", "suspect", "; ".join(crowded), {"hosts": crowded})
    counts = Counter(f.threads for f in findings)
    return Check("threads", "ok", f"threads a rank: {sorted(counts)}", {})


def _noise(findings: Sequence[Findings]) -> Check:
    """Processor time short of busy time on one thread, or time the host took, is noise."""
    reasons = []
    for f in findings:
        if f.steal_share is not None and f.steal_share > NOISY_SHARE:
            reasons.append(f"rank {f.rank}: {f.steal_share:.1%} stolen by the host")
        if f.threads == 1 and f.cpu_share is not None and f.cpu_share < 1 - NOISY_SHARE:
            reasons.append(f"rank {f.rank}: {f.cpu_share:.0%} processor time of busy time")
    values = {
        str(f.rank): {"cpu": f.cpu_share, "steal": f.steal_share, "switches": f.switches}
        for f in findings
    }
    if reasons:
        return Check("noisy", "suspect", "; ".join(reasons), values)
    return Check("noise", "ok", "processor time accounts for busy time", values)


def _drift(walls: Sequence[float]) -> Check:
    third = len(walls) // 3
    if third < 3:
        return Check("drift", "unknown", f"{len(walls)} steps are too few to tell", {})
    first = statistics.median(walls[:third])
    last = statistics.median(walls[-third:])
    change = last / first - 1
    values = {"first_third_s": first, "last_third_s": last}
    if abs(change) > DRIFT:
        return Check(
            "drift", "suspect", f"median step time changed {change:+.0%} over the run", values
        )
    return Check("drift", "ok", f"median step time changed {change:+.1%} over the run", values)


def _cost(findings: Sequence[Findings]) -> Check:
    """What looking took; it is outside the timed steps, so it can slow a run and not falsify it."""
    shares = [f.looked_s / f.lasted_s if f.lasted_s > 0 else 0.0 for f in findings]
    detail = f"the audit took {max(shares):.2%} of the time, outside every timed step"
    return Check("cost", "ok", detail, {"share": max(shares)})


def _edges(graph: dict[str, Any]) -> Check:
    kept = float(graph["edges_kept"])
    detail = f"{graph['mode']} chunks kept {kept:.1%} of the edges"
    if kept < 1.0:
        return Check("edges-lost", "suspect", detail, {"edges_kept": kept})
    return Check("edges", "ok", detail, {"edges_kept": kept})

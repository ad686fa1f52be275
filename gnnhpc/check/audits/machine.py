"""What ranks ran on: kernels and threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.records.schema import Check


def kernels(observations: Sequence[RankObservations]) -> Check:
    """One rank without a compiler computes the same, but its time is another program's."""
    ranks: dict[str, list[int]] = {}
    for each in observations:
        ranks.setdefault(each.implementation, []).append(each.rank)
    values = {"implementations": ranks}
    if len(ranks) > 1:
        found = ", ".join(f"{name} on ranks {held}" for name, held in ranks.items())
        return Check("kernels", "invalid", f"ranks computed by different code: {found}", values)
    return Check("kernels", "ok", f"{observations[0].implementation} on every rank", values)


def gpus(observations: Sequence[RankObservations]) -> Check:
    """Ranks that share a GPU, as they were told to, take each other's time."""
    ranks: dict[str, list[int]] = {}
    for each in observations:
        ranks.setdefault(each.gpu or "none", []).append(each.rank)
    shared = {gpu: held for gpu, held in ranks.items() if len(held) > 1}
    if shared:
        found = "; ".join(f"ranks {held} on {gpu}" for gpu, held in shared.items())
        return Check("shared_gpu", "suspect", f"ranks shared a GPU: {found}", {"gpus": ranks})
    return Check("shared_gpu", "ok", "each rank had a GPU of its own", {"gpus": ranks})


def threads(observations: Sequence[RankObservations]) -> Check:
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

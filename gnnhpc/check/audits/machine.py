"""What ranks ran on: kernels, threads, CPUs, GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.kernels.calls import TORCH, TRITON
from gnnhpc.records.schema import Check

USED_OTHERWISE = 0.1
"""Of the training steps, from which on threads used are not those set: one may be disturbed, and
then fewer threads are seen in it."""
TORCH_GRAIN = 32768
"""Elements up to which torch leaves a loop to one thread (at::internal::GRAIN_SIZE)."""


def kernels(observations: Sequence[RankObservations]) -> Check:
    """One rank without a compiler computes the same, but its time is another program's.

    What a rank says that it computes with is held against what it called.
    """
    ranks: dict[str, list[int]] = {}
    for each in observations:
        ranks.setdefault(each.implementation, []).append(each.rank)
    values = {
        "implementations": ranks,
        "calls": {str(each.rank): each.calls for each in observations},
    }
    wrong = []
    if len(ranks) > 1:
        found = ", ".join(f"{name} on ranks {held}" for name, held in ranks.items())
        wrong.append(f"ranks computed by different code: {found}")
    wrong += [_other_than_said(each) for each in observations]
    by_kernels = observations[0].implementation.startswith(("fused/c++", "fused/triton"))
    if by_kernels and not any(_of_layers(each) for each in observations):
        wrong.append(f"ranks say {observations[0].implementation} and called no kernel")
    wrong += [f"rank {each.rank}: {fault}" for each in observations for fault in each.other_calls]
    wrong = [reason for reason in wrong if reason]
    if wrong:
        return Check("kernels", "invalid", "; ".join(wrong), values)
    return Check("kernels", "ok", f"{observations[0].implementation} on every rank", values)


_OF_NO_LAYER = ("drop_", "find_finite", "mark_rows")


def _of_layers(each: RankObservations) -> list[str]:
    """Calls that compute layers. Dropout's masks are the same kernels in every implementation, and
    what looks for rows with a gradient or numbers that are not finite is of another library."""
    return [name for name in each.calls if not name.split()[-1].startswith(_OF_NO_LAYER)]


def _other_than_said(each: RankObservations) -> str:
    """Calls in torch where compiled ones were announced, or the other way round."""
    in_torch = [name for name in each.calls if name.startswith(f"{TORCH} ")]
    other: list[str] = []
    if "c++" in each.implementation:
        other = in_torch
    elif each.implementation.startswith("reference"):
        other = _of_layers(each)
    elif each.implementation.startswith("fused/triton"):
        other = [n for n in each.calls if n in in_torch or n in _of_layers(each)]
        other = [name for name in other if not name.startswith(f"{TRITON} ")]
    elif each.implementation.startswith("fused/torch"):
        other = [name for name in _of_layers(each) if name not in in_torch]
    if not other:
        return ""
    return f"rank {each.rank} says {each.implementation} and called {', '.join(sorted(other))}"


def gpus(observations: Sequence[RankObservations]) -> Check:
    """Ranks that share a GPU, as they were told to, take each other's time; so do the stages of one
    process on fewer GPUs.
    """
    ranks: dict[str, list[int]] = {}
    crowded = []
    for each in observations:
        own = (each.gpu or "none").split("+")
        for gpu in own:
            ranks.setdefault(gpu, []).append(each.rank)
        if len(own) < len(each.partitions):
            crowded.append(
                f"rank {each.rank} computed its {len(each.partitions)} stages on {each.gpu}"
            )
    shared = {gpu: held for gpu, held in ranks.items() if len(held) > 1}
    causes = []
    if shared:
        found = "; ".join(f"ranks {held} on {gpu}" for gpu, held in shared.items())
        causes.append(f"ranks shared a GPU: {found}")
    causes += crowded
    if causes:
        return Check("shared_gpu", "suspect", "; ".join(causes), {"gpus": ranks})
    return Check("shared_gpu", "ok", "each stage had a GPU of its own", {"gpus": ranks})


def threads(observations: Sequence[RankObservations]) -> Check:
    wrong = [
        f"rank {each.rank} ran {number} threads from {since} on, {each.threads_wanted} were asked "
        "for"
        for each in observations
        for number, since in each.threads.items()
        if number != each.threads_wanted
    ]
    if wrong:
        return Check("threads", "invalid", "; ".join(wrong), {})
    pinned = [each for each in observations if each.threads_wanted > len(each.cpus)]
    if pinned:
        each = pinned[0]
        return Check(
            "oversubscribed",
            "suspect",
            f"rank {each.rank} on {each.host}: {each.threads_wanted} threads on the "
            f"{len(each.cpus)} CPUs it may use, whatever its neighbours have",
            {"ranks": [each.rank for each in pinned]},
        )
    by_machine: dict[str, list[RankObservations]] = {}
    for each in observations:
        by_machine.setdefault(each.machine, []).append(each)
    oversubscribed = [told for ranks in by_machine.values() for told in _taking_turns(ranks)]
    if oversubscribed:
        return Check(
            "oversubscribed", "suspect", "; ".join(oversubscribed), {"hosts": oversubscribed}
        )
    counts = Counter(each.threads_wanted for each in observations)
    return Check("threads", "ok", f"threads a rank: {sorted(counts)}", {})


def _taking_turns(ranks: Sequence[RankObservations]) -> Iterator[str]:
    """Of the ranks of one machine, whatever names of hosts it has: whether there are too few CPUs.

    What draws mini-batches in advance needs one too, unless a rank alone had none for it.
    """
    hosts = list(dict.fromkeys(each.host for each in ranks))
    where = ", ".join(hosts) + (" (one machine)" if len(hosts) > 1 else "")
    cpus = {cpu for each in ranks for cpu in each.cpus}
    threads = sum(each.threads_wanted for each in ranks)
    workers = sum(each.workers for each in ranks)
    if threads > len(cpus):
        yield f"{where}: {threads} threads on {len(cpus)} CPUs"
    elif threads + workers > len(cpus) and any(
        each.workers and each.threads_wanted + each.workers <= len(each.cpus) for each in ranks
    ):
        yield f"{where}: {threads} threads and {workers} data workers on {len(cpus)} CPUs"


def threads_used(observations: Sequence[RankObservations]) -> Check:
    """Threads that used a processor within the steps, whatever torch was set to.

    Torch leaves small tensors to one thread, whatever it was set to; compiled kernels do not.
    """
    more, fewer, small = [], [], []
    for each in observations:
        steps = sum(each.threads_used.values())
        for number, count in sorted(each.threads_used.items()):
            if each.gpu is not None or count <= USED_OTHERWISE * steps:
                continue
            if number < each.threads_wanted and _too_small_for_threads(each):
                small.append(each.rank)
                continue
            if number < each.threads_wanted and count == 1:
                continue
            found = (
                f"rank {each.rank} computed with {number} threads in {count} of {steps} steps, "
                f"{each.threads_wanted} were asked for"
            )
            if number > each.threads_wanted:
                more.append(found)
            elif number < each.threads_wanted:
                fewer.append(found)
    values = {str(each.rank): each.threads_used for each in observations}
    if more:
        return Check("threads_used", "invalid", "; ".join(more + fewer), values)
    if fewer:
        return Check("threads_used", "suspect", "; ".join(fewer), values)
    detail = "as many threads computed as were set"
    if small:
        detail += f", but on ranks {sorted(set(small))}, whose tensors torch leaves to one thread"
    return Check("threads_used", "ok", detail, values)


def _too_small_for_threads(each: RankObservations) -> bool:
    if any(not name.startswith(f"{TORCH} ") for name in _of_layers(each)):
        return False
    return each.largest_tensor is not None and each.largest_tensor <= TORCH_GRAIN


def memory(observations: Sequence[RankObservations]) -> Check:
    """Recorded peaks of memory can be."""
    wrong = [f"rank {each.rank}: {fault}" for each in observations for fault in each.memory]
    if wrong:
        return Check("memory", "invalid", "; ".join(wrong), {})
    ranks = [each.rank for each in observations if not each.peak_is_of_run]
    if ranks:
        detail = (
            f"peaks of memory of rank {ranks[0]} hold what the self-check needed: this system does "
            "not let a process begin its peak anew"
        )
        return Check("memory", "suspect", detail, {"ranks": ranks})
    return Check("memory", "ok", "recorded peaks hold what ranks held after their steps", {})


def affinity(observations: Sequence[RankObservations]) -> Check:
    """The CPUs that a rank may use are those it began with."""
    lost = [f"rank {each.rank}: {fault}" for each in observations for fault in each.lost_cpus]
    values = {str(each.rank): each.cpus for each in observations}
    if lost:
        return Check("affinity", "suspect", "; ".join(lost), values)
    return Check("affinity", "ok", "every computing thread kept its CPUs", values)

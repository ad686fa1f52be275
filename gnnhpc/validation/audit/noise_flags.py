"""Flags of noise and shared processors, from what is read outside of steps. Free of torch.

`noisy`, `oversubscribed` and `shared-node` do not make a cell invalid: they say that its times may
not be those of an idle machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gnnhpc.distributed.cpus import binding_variable
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check
from gnnhpc.validation.audit.rank_records import AttemptRecords, RankRecords
from gnnhpc.validation.verdicts import few, verdict_of

NOISY_SHARE = 0.05
"""Steal, or waiting for a processor, of the time of steps, above which a cell is noisy."""


def threads(attempt: AttemptRecords) -> Check:
    """Ranks used the planned threads; flags `oversubscribed` where CPUs were too few for them."""
    planned, faults = int(attempt.result.provenance["threads"]), []
    for rank in attempt.ranks:
        used = {rank.header.threads, int(rank.processors.get("threads", rank.header.threads))}
        faults += [
            f"rank {rank.rank} had {count} threads, planned are {planned}"
            for count in sorted(used - {planned})
        ]
    if faults:
        return verdict_of("threads", faults)
    machines: dict[str, list[RankRecords]] = {}
    for rank in attempt.ranks:
        machines.setdefault(_machine(rank), []).append(rank)
    short = [fault for ranks in machines.values() for fault in _lack_of_cpus(ranks)]
    if short:
        bound = (binding_variable(rank.header.variables or {}) for rank in attempt.ranks)
        short += [f"OpenMP binds threads by {each}" for each in dict.fromkeys(bound) if each]
        return verdict_of("oversubscribed", short, is_suspect=True)
    return Check("threads", "ok", f"{planned} threads a rank on CPUs of their own")


def _lack_of_cpus(ranks: Sequence[RankRecords]) -> Iterator[str]:
    """Why the ranks of one machine have too few CPUs."""
    for rank in ranks:
        if rank.header.threads > rank.header.cpus:
            yield (
                f"rank {rank.rank} on {rank.header.host}: {rank.header.threads} threads on "
                f"{rank.header.cpus} CPUs"
            )
            return
    affinities = [rank.processors.get("cpus") for rank in ranks]
    if any(each is None for each in affinities):
        return
    cpus = len({cpu for each in affinities for cpu in each or ()})
    computing = sum(rank.header.threads for rank in ranks)
    if computing > cpus:
        hosts = ", ".join(dict.fromkeys(rank.header.host for rank in ranks))
        yield f"{hosts}: {computing} threads on {cpus} CPUs"


def noise(attempt: AttemptRecords) -> Check:
    """Flags `noisy` where the host or other processes took processor time from a rank.

    What this job's own threads take from its ranks belongs to what is measured.
    """
    reasons = []
    for rank in attempt.ranks:
        steal, delay = (_share_of_steps(rank, name) for name in ("steal_s", "run_delay_s"))
        others = share_of_others(rank, attempt.ranks)
        if steal > NOISY_SHARE:
            reasons.append(f"rank {rank.rank}: the host took {steal:.1%} of the time")
        if delay > NOISY_SHARE and (others is None or others > delay / 2):
            users = "other threads" if others is None else "other processes"
            reasons.append(
                f"rank {rank.rank} was ready to run for {delay:.1%} of its steps while {users} had "
                "its processors"
            )
    good = "no other process took processor time from the ranks"
    return verdict_of("noisy", reasons, good, is_suspect=True)


def _share_of_steps(rank: RankRecords, name: str) -> float:
    """A field over the wall time of measured steps; 0 where the system does not report it.

    It is read outside of steps, so that a little more than a step's may be counted.
    """
    seconds, wall = rank.column(name)[rank.measured], rank.column("wall_s")[rank.measured]
    if not len(wall) or not np.isfinite(seconds).all() or wall.sum() <= 0:
        return 0.0
    return min(1.0, float(seconds.sum() / wall.sum()))


def share_of_others(rank: RankRecords, ranks: Sequence[RankRecords]) -> float | None:
    """Processors that processes of other jobs used, on average, of those a rank may use.

    None where a rank that shares these CPUs has no record of it. The resolution of the system's
    clock is subtracted.
    """
    mine = rank.processors
    neighbours = [
        other.processors
        for other in ranks
        if _machine(other) == _machine(rank)
        and set(other.processors.get("cpus", ())) & set(mine.get("cpus", ()))
    ]
    if not neighbours or not all(each.get("seconds") for each in neighbours):
        return None
    ours = sum(each["by_process_s"] / each["seconds"] for each in neighbours)
    used = (mine["by_anybody_s"] - mine["resolution_s"]) / mine["seconds"]
    return max(0.0, float(used - ours))


def shared_node(result: Result) -> list[Check]:
    """Flags other jobs that Slurm had on the nodes at the start or end; empty outside Slurm.

    A job that came and went in between shows by its load alone, as `noisy`.
    """
    asked: Mapping[str, Any] = result.provenance.get("other_jobs") or {}
    if not asked:
        return []
    answers = {when: answer for when, answer in asked.items() if answer is not None}
    if not answers:
        detail = "Slurm did not answer which jobs were on its nodes"
        return [Check("shared-node", "unknown", detail)]
    jobs = sorted({str(job) for answer in answers.values() for job in answer["jobs"]}, key=int)
    hidden = max(int(answer["cpus"] or 0) for answer in answers.values())
    moments = " and ".join(answers)
    if jobs or hidden:
        who = f"other jobs: {few(jobs)}" if jobs else f"jobs that squeue hides, on {hidden} CPUs"
        detail = f"at its {moments} there were on its nodes {who}"
        return [Check("shared-node", "suspect", detail)]
    return [Check("shared-node", "ok", f"no other job was on its nodes at its {moments}")]


def _machine(rank: RankRecords) -> str:
    """Equal for ranks whose CPUs are of one machine, whatever host names it has."""
    return str(rank.processors.get("system") or rank.header.host)

"""Whether the nodes of a job were its alone, as Slurm said at its start and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from gnnhpc.distributed.other_jobs import OtherJobs
from gnnhpc.records.schema import Check

NAME = "shared-node"


def shared_node(looks: Mapping[str, OtherJobs | None]) -> list[Check]:
    """`looks` are by moment, None where Slurm did not answer, and none outside Slurm's jobs.

    A job that came and went in between is seen by its load alone, which `noisy` tells.
    """
    if not looks:
        return []
    answers = {when: seen for when, seen in looks.items() if seen is not None}
    values = {when: asdict(seen) for when, seen in answers.items()}
    if not answers:
        return [Check(NAME, "unknown", "Slurm did not say which jobs were on its nodes", values)]
    others = sorted({job for seen in answers.values() for job in seen.jobs}, key=int)
    if others:
        jobs = f"{len(others)} other job{'s' if len(others) > 1 else ''}"
        shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        moments = " and ".join(when for when, seen in answers.items() if seen.jobs)
        detail = f"its nodes had {jobs} at its {moments}: {shown}"
        return [Check(NAME, "suspect", detail, values)]
    hidden = max((seen.cpus or 0 for seen in answers.values()), default=0)
    if hidden:
        detail = f"{hidden} CPUs of its nodes were given to jobs that squeue does not list"
        return [Check(NAME, "suspect", detail, values)]
    moments = " and ".join(answers)
    return [Check(NAME, "ok", f"its nodes had no other job at its {moments}", values)]

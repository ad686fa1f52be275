"""`site check`: whether Slurm would take a job with the settings of a site."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.slurm.job_array import Resources
from jobs.slurm.partitions import Partition, longest_time_min
from jobs.slurm.sbatch import refusal
from jobs.slurm.site import Site


def site_mismatches(site: Site, partitions: Sequence[Partition]) -> list[str]:
    """One line for each reason why a job of one node would not start; nothing is submitted."""
    needs = Resources(site, 1, site.tasks_per_node, site.time_min, site.gres, site.gpus_per_node)
    found = [line for line in [refusal(needs.options())] if line is not None]
    # By default Slurm takes a job above this limit, and never starts it.
    longest = longest_time_min(site, partitions)
    if longest is not None and site.time_min > longest:
        found.append(f"time: found {site.time}; allowed: at most {longest} minutes")
    return found

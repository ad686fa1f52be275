"""The partitions of a cluster, as sinfo lists them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.slurm_commands import run_slurm
from jobs.slurm.queue import error_line
from jobs.slurm.site import Site, time_limit_minutes

_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%f"


@dataclass(frozen=True)
class Partition:
    """One line of sinfo: a partition's nodes of one kind."""

    name: str
    default: bool
    up: bool
    time_min: int | None
    """Longest time limit, minutes; None if there is no limit."""
    nodes: int
    cpus: str
    """CPUs a node, as sinfo writes them: `16+` for a minimum over several nodes."""
    described: str
    """Name and offer in one line."""


def query_partitions() -> list[Partition] | None:
    """The partitions that sinfo lists; None where there is no Slurm.

    Raises GnnhpcError if sinfo fails.
    """
    if shutil.which("sinfo") is None:
        return None
    try:
        return parse_sinfo(run_slurm("sinfo", "--noheader", f"--format={_FORMAT}", timeout_s=60.0))
    except (OSError, subprocess.SubprocessError) as error:
        raise GnnhpcError(f"sinfo: {error_line(error)}") from None


def parse_sinfo(text: str) -> list[Partition]:
    """Partitions from sinfo's output in the format `_FORMAT`."""
    found = []
    for line in text.splitlines():
        name, avail, limit, nodes, cpus, mem, gres, features = line.split("|")
        offer = [f"{nodes} nodes", f"{cpus} CPUs", f"{mem} MiB", f"time limit {limit}"]
        offer += [each for each in (gres, features) if each != "(null)"]
        found.append(
            Partition(
                name=name.rstrip("*"),
                default=name.endswith("*"),
                up=avail == "up",
                time_min=None if limit == "infinite" else time_limit_minutes(limit),
                nodes=int(nodes),
                cpus=cpus,
                described=f"{name} ({avail}): {', '.join(offer)}",
            )
        )
    return found


def longest_time_min(site: Site) -> int | None:
    """The longest time limit of the site's partition, minutes.

    None where it is not known, where there is none, and with a QoS, which has a limit of its own.
    """
    try:
        partitions = query_partitions() or []
    except GnnhpcError:
        return None
    names = site.partition.split(",") if site.partition else None
    chosen = [each for each in partitions if (each.name in names if names else each.default)]
    limits = [each.time_min for each in chosen]
    if site.qos is not None or None in limits:
        return None
    return max((limit for limit in limits if limit is not None), default=None)

"""The partitions of a cluster, as sinfo lists them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.slurm_commands import run_slurm
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
    cpus: int
    mem_mib: int
    gres: str
    features: tuple[str, ...]

    def described(self) -> str:
        """Name and offer in one line."""
        limit = "no limit" if self.time_min is None else f"{self.time_min} min"
        marks = [mark for mark, on in (("default", self.default), ("down", not self.up)) if on]
        mark = f" ({', '.join(marks)})" if marks else ""
        offer = f"{self.nodes} nodes, {self.cpus} CPUs, {self.mem_mib} MiB, {limit}"
        return f"{self.name}{mark}: {offer}{', ' + self.gres if self.gres else ''}"


def query_partitions() -> list[Partition] | None:
    """The partitions that sinfo lists; None where there is no Slurm.

    Raises GnnhpcError if sinfo fails.
    """
    if shutil.which("sinfo") is None:
        return None
    try:
        return parse_sinfo(run_slurm("sinfo", "--noheader", f"--format={_FORMAT}", timeout_s=60.0))
    except subprocess.SubprocessError as error:
        words = getattr(error, "stderr", None) or str(error)
        raise GnnhpcError(f"sinfo: {' '.join(str(words).split())}") from None


def parse_sinfo(text: str) -> list[Partition]:
    """Partitions from sinfo's output in the format `_FORMAT`."""
    found = []
    for line in text.splitlines():
        name, avail, limit, nodes, cpus, mem, gres, features = line.split("|")
        found.append(
            Partition(
                name=name.rstrip("*"),
                default=name.endswith("*"),
                up=avail == "up",
                time_min=None if limit == "infinite" else time_limit_minutes(limit),
                nodes=int(nodes),
                cpus=_leading_number(cpus),
                mem_mib=_leading_number(mem),
                gres="" if gres == "(null)" else gres,
                features=() if features == "(null)" else tuple(features.split(",")),
            )
        )
    return found


def longest_time_min(site: Site, partitions: Sequence[Partition]) -> int | None:
    """The longest limit of the site's partition, minutes; None where there is none, or a QoS."""
    limits = [p.time_min for p in _of_site(site, partitions)]
    if site.qos is not None or None in limits:
        return None
    return max((limit for limit in limits if limit is not None), default=None)


def _of_site(site: Site, partitions: Sequence[Partition]) -> list[Partition]:
    if site.partition is None:
        return [p for p in partitions if p.default]
    return [p for p in partitions if p.name in site.partition.split(",")]


def _leading_number(text: str) -> int:
    """sinfo writes a minimum over several nodes as `16+`."""
    return int(re.sub(r"\D", "", text) or 0)

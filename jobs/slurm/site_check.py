"""`site check`: compares a site's settings with what sinfo says the cluster has."""

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
_MEM = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


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


def site_mismatches(site: Site, partitions: Sequence[Partition]) -> list[str]:
    """One line for each setting that this cluster cannot satisfy."""
    mine = _of_site(site, partitions)
    if not mine:
        names = ", ".join(sorted({p.name for p in partitions}))
        what = repr(site.partition) if site.partition else "nothing, and no default"
        return [f"partition: found {what}; allowed: {names}"]
    found = []
    if not any(p.up for p in mine):
        found.append(f"partition: found {mine[0].name}, which is down; allowed: one that is up")
    longest = longest_time_min(site, partitions)
    if longest is not None and site.time_min > longest:
        found.append(f"time: found {site.time}; allowed: at most {longest} minutes")
    need, most = site.cpus_per_task * site.tasks_per_node, max(p.cpus for p in mine)
    if need > most:
        found.append(
            f"cpus_per_task: found {site.cpus_per_task} for {site.tasks_per_node} tasks a node; "
            f"allowed: {most} CPUs a node"
        )
    memory = max(p.mem_mib for p in mine)
    if site.mem and _mib(site.mem) > memory:
        found.append(f"mem: found {site.mem}; allowed: {memory}M a node")
    gpus = {part for p in mine for part in p.gres.split(",") if part}
    asked = site.gres or ("gpu" if site.gpus_per_node else None)
    if asked and asked.split(":")[0] not in {re.sub(r"[:(].*", "", part) for part in gpus}:
        key = "gres" if site.gres else "gpus_per_node"
        offered = ", ".join(sorted(gpus)) or "no GPUs in this partition"
        found.append(f"{key}: found {getattr(site, key)}; allowed: {offered}")
    features = {feature for p in mine for feature in p.features}
    for part in re.split(r"[&|,()\[\]!*0-9]+", site.constraint or ""):
        if part and part not in features:
            allowed = ", ".join(sorted(features)) or "none"
            found.append(f"constraint: found {part}; allowed: {allowed}")
    return found


def _mib(text: str) -> float:
    match = re.match(r"(\d+)([KMGT]?)", text)
    assert match is not None
    return int(match[1]) * _MEM[match[2] or "M"]


def _leading_number(text: str) -> int:
    """sinfo writes a minimum over several nodes as `16+`."""
    return int(re.sub(r"\D", "", text) or 0)

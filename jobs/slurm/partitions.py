"""What a cluster offers: its partitions as sinfo lists them, and a site file made from them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.slurm_commands import ask, run_slurm
from jobs.slurm.batch_script import template
from jobs.slurm.site_settings import Site, time_limit_minutes
from jobs.slurm.squeue_and_sacct import error_line

_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%f"
_LIMIT_MIN = 60
"""The time limit that a made site file has, where the partition allows as much."""


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
    limits = [each.time_min for each in chosen if each.time_min is not None]
    return max(limits, default=None) if site.qos is None and len(limits) == len(chosen) else None


def query_site_file() -> str:
    """The text of a site file; of sinfo, scontrol and sacctmgr only the first must answer.

    Raises InputError where there is no Slurm, GnnhpcError if sinfo fails.
    """
    partitions = query_partitions()
    if partitions is None:
        raise InputError("site init", None, "no sinfo here", "a cluster's login node")
    if not partitions:
        raise GnnhpcError("sinfo lists no partition")
    config = ask("scontrol", "show", "config") or ""
    cluster = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    associations = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
    accounts = ask(*associations, f"user={user()}", "format=Account") or ""
    return site_file_text(cluster[1] if cluster else "here", partitions, accounts.splitlines())


def site_file_text(cluster: str, partitions: Sequence[Partition], accounts: Sequence[str]) -> str:
    """A site file of the default partition, with the other choices as comments."""
    up = [part for part in partitions if part.up] or partitions
    chosen = next((part for part in up if part.default), up[0])
    # So that a block of a dozen cells, which has their time together, fits the partition.
    most = chosen.time_min or 12 * _LIMIT_MIN
    return template("site.yaml.j2").render(
        cluster=cluster,
        check=as_typed("jobs", "site check"),
        partitions=partitions,
        chosen=chosen,
        accounts=list(dict.fromkeys(accounts)),
        limit=min(most, max(5, min(_LIMIT_MIN, most // 12))),
    )


def write_site_file(path: Path, text: str) -> None:
    """Raises InputError where there is a file already, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(path, None, f"{error.strerror}", "another --out") from None

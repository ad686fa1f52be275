"""`site init`: a site file from what Slurm says of this cluster and of its user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.slurm_commands import ask
from jobs.slurm.batch_script import template
from jobs.slurm.partitions import Partition, query_partitions

_LIMIT_MIN = 60
"""The time limit that is written, where the partition allows as much."""


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

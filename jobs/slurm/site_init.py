"""`site init`: a site file from what Slurm says of this cluster and of its user."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import user
from gnnhpc.core.slurm_commands import ask
from jobs.slurm.partitions import Partition, query_partitions

_PLAIN = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*$")
_WORDS_OF_YAML = ("true", "false", "null")
_LIMIT_MIN = 60
"""The time limit that is written, where the partition allows as much."""


@dataclass(frozen=True)
class Offer:
    """What this cluster has, and its user may use."""

    cluster: str
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]
    qos: tuple[str, ...]


def query_offer() -> Offer:
    """Ask sinfo, scontrol and sacctmgr; only the first must answer.

    Raises InputError where there is no Slurm, GnnhpcError if sinfo fails.
    """
    partitions = query_partitions()
    if partitions is None:
        raise InputError("site init", None, "no sinfo here", "a cluster's login node")
    if not partitions:
        raise GnnhpcError("sinfo lists no partition")
    associations = ask(
        *("sacctmgr", "--noheader", "--parsable2", "show", "associations"),
        *(f"user={user()}", "format=Account,QOS"),
    )
    accounts, qos = parse_associations(associations or "")
    config = ask("scontrol", "show", "config") or ""
    cluster = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    return Offer(
        cluster[1] if cluster else "here",
        tuple(partitions),
        accounts,
        qos,
    )


def parse_associations(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Accounts and QoS of a user, as sacctmgr prints them: `account|qos,qos`."""
    accounts: dict[str, None] = {}
    qos: dict[str, None] = {}
    for line in text.splitlines():
        account, _, names = line.partition("|")
        accounts[account] = None
        qos |= dict.fromkeys(name for name in names.split(",") if name)
    return tuple(accounts), tuple(qos)


def write_site_file(path: Path, text: str) -> None:
    """Raises InputError where there is a file already, or it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError(path, None, "a file that is there", "another --out") from None
    except OSError as error:
        raise InputError(path, None, f"{error.strerror}", "a file that may be written") from None


def site_file_text(offer: Offer) -> str:
    """A site file of the default partition, with the other choices as comments."""
    name = _scalar(offer.cluster)
    lines = [
        f"# Site file of {offer.cluster}, from what sinfo, scontrol and sacctmgr say.",
        f"# `{as_typed('jobs', 'site check')}` compares it with the cluster.",
        f"default: {name}",
        "sites:",
        f"  {name}:",
    ]
    return "\n".join([*lines, *(f"    {line}" for line in _settings(offer))]) + "\n"


def _settings(offer: Offer) -> Iterator[str]:
    up = [part for part in offer.partitions if part.up] or list(offer.partitions)
    chosen = next((part for part in up if part.default), up[0])
    yield "# Partitions:"
    for part in offer.partitions:
        yield f"#   {part.described()}"
    yield f"partition: {_scalar(chosen.name)}"
    yield from _choice("account", "Accounts", offer.accounts, sure=len(offer.accounts) == 1)
    yield from _choice("qos", "QoS", offer.qos, sure=False)
    yield f"# CPUs a rank, of {chosen.cpus} a node, and ranks a node:"
    yield "cpus_per_task: 1"
    yield "# tasks_per_node: 1"
    # So that a block of a dozen cells, which has their time together, fits the partition.
    most = chosen.time_min or 12 * _LIMIT_MIN
    limit = min(most, max(5, min(_LIMIT_MIN, most // 12)))
    yield "# Time limit of a cell (a paired block has it for each of its cells), and how many"
    yield "# seconds before it ranks save and stop:"
    yield f'time: "{limit // 60:02}:{limit % 60:02}:00"'
    yield "# signal: 90" if limit > 2 else "signal: 20"
    yield "# Whole nodes: other jobs beside a cell disturb what is measured."
    yield "exclusive: true"
    if chosen.gres:
        yield f"# GPUs a node, of {chosen.gres}, for cells with device gpu:"
        yield "# gpus_per_node: 1"
    if chosen.features:
        yield f"# Kinds of nodes: {', '.join(chosen.features)}"
        yield f"# constraint: {_scalar(chosen.features[0])}"
    yield "# What jobs run before the ranks; a line that fails ends the job:"
    yield "# modules: [gcc/12]"
    yield "# activate: source /path/to/.venv/bin/activate"
    yield "# Cells of one submission that run at once:"
    yield f"max_parallel: {max(1, min(4, chosen.nodes))}"
    yield "# Any other option of sbatch:"
    yield "# slurm: {mail-type: END, reservation: NAME}"


def _choice(key: str, title: str, names: Sequence[str], *, sure: bool) -> Iterator[str]:
    if not names:
        yield f"# {title}: sacctmgr names none"
        yield f"# {key}: NAME"
        return
    yield f"# {title}: {', '.join(names)}"
    yield f"{'' if sure else '# '}{key}: {_scalar(names[0])}"


def _scalar(text: str) -> str:
    """The text as YAML reads it back: JSON's strings are YAML's too."""
    return text if _PLAIN.match(text) and text.lower() not in _WORDS_OF_YAML else json.dumps(text)

"""What a run cost: allocated processor time, from Slurm's accounting or from results."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import ClassVar

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import build_record, check_version, read_object, write_atomically
from gnnhpc.records.result_file import Result

VERSION = 1


@dataclass(frozen=True)
class AccountedCost:
    """RUN/accounting.json: the last answer of Slurm's accounting for all jobs of the run.

    It is kept since Slurm forgets, and since a copy of the run may be where there is no Slurm.
    """

    at: str
    """Time of the answer: UTC, ISO 8601."""
    tasks: int
    """Array tasks that began; each requeue counts again."""
    running: int
    """Tasks that had not ended."""
    core_s: float
    """Seconds times CPUs that were allocated to them."""
    ended_core_s: float
    """`core_s` of the tasks whose processor time is known, which is after their end."""
    cpu_s: float | None
    """Processor time of those; None where Slurm does not gather it."""
    energy_j: float | None
    """Energy of the nodes while the ranks ran; None where nodes were shared or Slurm does not
    measure."""
    version: int = VERSION
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @property
    def efficiency(self) -> float | None:
        """Processor time over what was allocated."""
        known = self.cpu_s is not None and self.ended_core_s > 0
        return (self.cpu_s or 0.0) / self.ended_core_s if known else None


def write_accounted(paths: RunPaths, cost: AccountedCost) -> None:
    write_atomically(paths.accounting, json.dumps(asdict(cost), indent=1) + "\n")


def read_accounted(paths: RunPaths) -> AccountedCost | None:
    """The stored answer; None without one. Raises InputError for a damaged file."""
    where = paths.accounting
    try:
        raw = read_object(where, "what Slurm's accounting answered, as written")
    except FileNotFoundError:
        return None
    check_version(raw, VERSION, where)
    return build_record(AccountedCost, raw, where)


def attempt_core_s(result: Result) -> float | None:
    """Seconds from a rank's start to the result, times the CPUs of all ranks; None if unknown.

    A job holds its CPUs a little longer, since it begins before its ranks.
    """
    threads, ranks = result.provenance.get("threads"), result.layout.get("world_size")
    if not isinstance(threads, int) or not isinstance(ranks, int):
        return None
    try:
        began, ended = map(datetime.fromisoformat, (result.started_at, result.ended_at))
        return max(0.0, (ended - began).total_seconds()) * threads * ranks
    except (ValueError, TypeError):
        return None

"""result.json: what an attempt measured, its checks, and why it failed; rank 0 writes it last."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.core.versioned_json import (
    DIGEST,
    build_record,
    check_version,
    content_digest,
    read_object,
    temporary_beside,
    with_digest,
    write_atomically,
)
from gnnhpc.records.schema import SCHEMA, Check, Failure, Status

NOT_DIGESTED = ("provenance",)
"""Left out of a result's digest: users may remove hosts and paths before they publish it."""


@dataclass(frozen=True)
class Result:
    """`result.json`, which rank 0 writes last, atomically, with a digest of its content."""

    cell: str
    attempt: int
    status: Status
    experiment: dict[str, Any]
    layout: dict[str, Any]
    """name, replicas, stages, world_size, balance (layers of each virtual stage), schedule,
    virtual_stages."""
    provenance: dict[str, Any]
    """git commit, versions, what each rank computes with, site, Slurm ids, command line."""
    started_at: str
    ended_at: str
    train_steps: int
    test_steps: int
    final: dict[str, float] = field(default_factory=dict)
    """Last losses and metrics, such as train_loss, test_loss, test_accuracy."""
    graph: dict[str, Any] = field(default_factory=dict)
    """For graph data: edges kept, redundancy, chunk sizes."""
    audit: list[Check] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)
    """`seconds` that validation took, and `attempt_s` that the attempt took until its result."""
    failure: Failure | None = None
    resumed_from: dict[str, Any] | None = None
    """Attempt and training step of the checkpoint that this attempt resumed from."""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File of a rank -> its size and SHA-256 when the last step was recorded."""
    schema: int = SCHEMA
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @property
    def valid(self) -> bool:
        """Whether it is done and no check found it invalid."""
        return self.status == "done" and all(check.verdict != "invalid" for check in self.audit)

    @property
    def slurm_job(self) -> str | None:
        """The job that made the attempt; None outside Slurm."""
        return slurm_job(self.provenance.get("slurm"))

    @property
    def flags(self) -> list[str]:
        return list(dict.fromkeys(check.flag for check in self.audit if check.flag))

    def write(self, path: Path) -> None:
        raw = with_digest(asdict(self), NOT_DIGESTED)
        write_atomically(path, json.dumps(raw, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises FileNotFoundError, InputError for a file that is damaged or of another schema, or
        was changed since it was written.
        """
        raw = read_object(path, "a result, as written")
        check_version(raw, SCHEMA, path, "schema")
        digest = raw.pop(DIGEST, None)
        result = build_record(cls, raw, path)
        if digest != content_digest(raw, NOT_DIGESTED):
            raise InputError(path, "content", "changed since it was written", "as its digest says")
        return result


def read_if_whole(path: Path) -> Result | None:
    """The result; None for a missing or damaged one."""
    try:
        return Result.read(path)
    except (FileNotFoundError, InputError):
        return None


def final_key(phase: str, metric: str) -> str:
    """A metric's key in `final`; metrics whose names begin with a split keep them."""
    return metric if metric.startswith(("val_", "test_")) else f"{phase}_{metric}"


def write_result_once(attempt: AttemptPaths, result: Result) -> bool:
    """Write result.json unless there is one already; true if this was the one."""
    temporary = temporary_beside(attempt.result)
    result.write(temporary)
    try:
        os.link(temporary, attempt.result)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def slurm_job(slurm: object) -> str | None:
    """Names a job and its cluster: `1230_4 of lab`, with the task of an array; None outside Slurm.

    `slurm` is what results and headers keep of SLURM_*.
    """
    if not isinstance(slurm, Mapping):
        return None
    array, task = slurm.get("SLURM_ARRAY_JOB_ID"), slurm.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else slurm.get("SLURM_JOB_ID")
    cluster = slurm.get("SLURM_CLUSTER_NAME")
    return f"{job} of {cluster}" if job and cluster else job and str(job)


def without_cluster(job: str) -> str:
    """The job as squeue of its cluster names it: `1230_4`."""
    return job.partition(" of ")[0]

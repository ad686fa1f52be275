"""The record schema: what each rank writes a step, and the result that ends an attempt.

A rank's file is JSON lines: a header first, then steps, spans and events. Stored files carry
`SCHEMA`; readers refuse others. Missing is null, never a number that means missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.versioned_json import build_record, check_version, parse_object, read_bytes

SCHEMA = 1
Phase = Literal["train", "test"]
Status = Literal["done", "failed", "interrupted"]
_NO_OTHER_KEYS = {"extra": "forbid"}
FLAGGED = ("invalid", "suspect", "inconclusive")
"""Verdicts that are flags of a cell."""


@dataclass(frozen=True)
class Header:
    """First line of `rank-NNNN.jsonl`: the rank's stage and replica, and what it runs on."""

    cell: str
    attempt: int
    rank: int
    """Number in the layout, replica after replica, and of the file."""
    replica: int
    stage: int
    world_size: int
    host: str
    pid: int
    cpu_model: str
    cpus: int
    """CPUs this process may use."""
    threads: int
    """Threads torch uses."""
    device: str
    layers: list[str]
    """Names of the layers this rank holds, in order."""
    parameters: int
    started_at: str
    """UTC, ISO 8601."""
    device_facts: dict[str, Any] | None = None
    """A GPU's name, driver, CUDA and NCCL; None on a CPU."""
    transfers: str | None = None
    """How tensors are sent between stages, such as `shared memory and gloo`; None with one
    stage."""
    slurm: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of starting: imports, rendezvous, data, build."""
    code: str | None = None
    """Digest of the sources of gnnhpc."""
    code_from: str | None = None
    """`snapshot`, the copy in the run folder, or `live`, the checkout."""
    implementation: str | None = None
    """The implementation of this rank's layers."""
    kernels: dict[str, str] | None = None
    """Kernel -> its compiler, or the reason why there is none."""
    cpu_capability: str | None = None
    """Instructions that torch uses, such as AVX2."""
    variables: dict[str, str] | None = None
    """Environment variables that change rounding, how tensors travel, or OpenMP's threads."""
    site: dict[str, Any] | None = None
    """Name and settings of the job's site that may decide speed."""
    schema: int = SCHEMA
    kind: Literal["header"] = "header"


@dataclass(frozen=True)
class StepRecord:
    """One mini-batch on one rank, between the barriers around it.

    `wall_s` is from barrier to barrier. `forward_s`, `backward_s` and `optimizer_s` are this rank's
    computing, `allreduce_s` the averaging of its gradients once all replicas are ready, and
    `wait_s` the rest: waiting for other ranks, and what lies between spans. `data_s` is the wait
    for the batch before the first barrier; a step of sampled mini-batches takes it too. On a GPU
    only profiled steps have these parts.
    """

    phase: Phase
    step: int
    """Number within its phase, from 0, over the whole run."""
    epoch: int
    warmup: bool
    start_s: float
    """When the rank left the first barrier, in seconds of the host's monotonic clock, which all
    processes of a host share."""
    wall_s: float
    cpu_s: float
    """Processor seconds of all threads of this process, read outside of the step."""
    forward_s: float | None
    backward_s: float | None
    allreduce_s: float | None
    optimizer_s: float | None
    wait_s: float | None
    data_s: float
    samples: int
    """Samples of this replica: images, graphs, links, or the nodes that its chunks own."""
    loss: float | None = None
    """Mean over the valid targets of all replicas; null on ranks without the loss."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics such as accuracy, val_accuracy, test_accuracy."""
    groups: dict[str, list[float]] = field(default_factory=dict)
    """Forward and backward seconds of each group of layers (a ViG block, the readout), in profiled
    steps."""
    peak_rss_mib: float | None = None
    """The most memory that the process has held since its first step."""
    peak_device_mib: float | None = None
    """The most memory of tensors in this step, with what CUDA graphs keep; null on a CPU."""
    involuntary_switches: int | None = None
    steal_s: float | None = None
    """Seconds that the host took from a CPU of this rank, on average over its CPUs."""
    grad_norm: float | None = None
    run_delay_s: float | None = None
    """Seconds that the main thread waited for a processor, read outside of the step."""
    recompute_s: float | None = None
    """Part of `backward_s` in which forwards were recomputed."""
    sample_s: float | None = None
    """Seconds to sample the edges of a mini-batch, in whichever thread; else null."""
    gather_s: float | None = None
    """Seconds to gather its features, in whichever thread; else null."""
    sampled_edges: int | None = None
    """Edges sampled on this replica, without self-loops; layers that share a sample count it
    once."""
    virtual_stage_s: list[list[float]] | None = None
    """Forward and backward seconds of each virtual stage of this rank, and under a split backward
    those of gradients of weights, which are part of its backward; null with one virtual stage."""
    weights_s: float | None = None
    """Part of `backward_s` for gradients of weights under a split backward; else null."""
    profiled: bool = False
    """Whether hooks measured each layer in this step; averages leave it out."""
    compilations: int | None = None
    """How often torch compiled a layer's forward or backward in this step; null where no layer is
    compiled."""
    kind: Literal["step"] = "step"


@dataclass(frozen=True)
class SpanRecord:
    """One stretch of one rank's time inside a step, seconds since the step's first barrier."""

    phase: Phase
    step: int
    name: Literal["forward", "backward", "weights", "allreduce", "optimizer", "wait"]
    """`backward_s` of a step is the sum of its spans `backward` and `weights`."""
    microbatch: int | None
    start_s: float
    end_s: float
    virtual_stage: int = 0
    """The virtual stage of a forward or backward, counted within the rank."""
    kind: Literal["span"] = "span"


@dataclass(frozen=True)
class EventRecord:
    """Something that happened once, such as a checkpoint written."""

    name: str
    at_s: float
    detail: dict[str, Any] = field(default_factory=dict)
    kind: Literal["event"] = "event"


@dataclass(frozen=True)
class Check:
    """The verdict of one check; `flag` is what summary.csv has of it."""

    name: str
    verdict: Literal["ok", "invalid", "suspect", "inconclusive", "unknown"]
    """`inconclusive` is a flag: validation could not compare. `unknown` is none: the system does
    not report it."""
    detail: str
    values: dict[str, Any] = field(default_factory=dict)
    __pydantic_config__: ClassVar[dict[str, str]] = _NO_OTHER_KEYS

    @property
    def flag(self) -> str | None:
        """What flags the cell: the name, `inconclusive` where nothing was compared, or nothing."""
        if self.verdict not in FLAGGED:
            return None
        return self.verdict if self.verdict == "inconclusive" else self.name


@dataclass(frozen=True)
class Failure:
    """Which rank failed first, where, when and why."""

    rank: int
    host: str
    step: int | None
    phase: str | None
    error: str
    """One line."""
    at: str
    """UTC, ISO 8601."""
    job: str | None = None
    """Slurm's array task, such as 1234_5, whose script failed before any rank; else None."""
    __pydantic_config__: ClassVar[dict[str, str]] = _NO_OTHER_KEYS


def check_header(raw: object, where: object) -> dict[str, Any]:
    """The header of a records file, or InputError if it is another schema, damaged or none."""
    if not isinstance(raw, dict) or raw.get("kind") != "header":
        raise InputError(where, None, "no header line", f"a header of schema {SCHEMA}")
    check_version(raw, SCHEMA, where, "schema")
    build_record(Header, raw, where)
    return raw


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Header and records of one rank; a last line cut short by a dead rank is left out.

    Raises InputError for another schema or a damaged line before the last.
    """
    records: list[dict[str, Any]] = []
    lines = read_bytes(path, "the records of a rank").split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(parse_object(line, f"{path}:{number}", "one record a line"))
        except InputError:
            if number < len(lines):
                raise
    if records:
        check_header(records[0], path)
    return records

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
    """First line of `rank-NNNN.jsonl`: which stage of which replica this is, and what it ran on."""

    cell: str
    attempt: int
    rank: int
    """The stage's place in the layout, replica after replica; also the file's number."""
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
    process: int | None = None
    """Rank of torch.distributed that holds the stage; None in records that are older."""
    device_facts: dict[str, Any] | None = None
    """A GPU's name, driver, CUDA and NCCL; None on a CPU and in records that are older."""
    transfers: str | None = None
    """How tensors come from and go to other stages, such as `shared memory and gloo`; None where
    there is no other and in records that are older."""
    slurm: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of starting: imports, rendezvous, data, build."""
    code: str | None = None
    """Digest of the sources of gnnhpc; None here and below in records that are older."""
    code_from: str | None = None
    """`snapshot`, the code that the run folder keeps, or `live`, what the checkout held."""
    implementation: str | None = None
    """Whose code computes this rank's layers."""
    kernels: dict[str, str] | None = None
    """Compiled kernels that were asked for, with the compiler or the reason for none."""
    cpu_capability: str | None = None
    """Instructions that torch uses, such as AVX2."""
    variables: dict[str, str] | None = None
    """Environment variables that are set and change rounding, or how tensors travel."""
    site: dict[str, Any] | None = None
    """Name and settings of the site that the job was started with, as far as they matter."""
    schema: int = SCHEMA
    kind: Literal["header"] = "header"


@dataclass(frozen=True)
class StepRecord:
    """One mini-batch on one rank, between the barriers around it.

    Seconds: `wall_s` barrier to barrier; `forward_s`, `backward_s`, `optimizer_s` this rank's own
    computing; `allreduce_s` averaging its gradients, from when the last replica's were ready;
    `wait_s` the rest of `wall_s`: waiting for other ranks, that replica included, and what lies
    between spans, which alone it is where a rank has no others; `data_s` taking the batch, before
    the first barrier and not in `wall_s`. Of a sampled mini-batch `data_s` is from barrier to
    barrier as well, and the step takes both. On a GPU the parts are those of profiled steps alone.
    """

    phase: Phase
    step: int
    """Counts from 0 within its phase over the whole run."""
    epoch: int
    warmup: bool
    start_s: float
    """Seconds since the rank's first step began."""
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
    """Samples this replica was given: images, or own nodes of its chunks."""
    loss: float | None = None
    """Mean over the labelled samples of all replicas; null where the rank has none."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Such as accuracy, val_accuracy, test_accuracy."""
    groups: dict[str, list[float]] = field(default_factory=dict)
    """Forward and backward seconds of each group of layers (a ViG block, the readout), in profiled
    steps."""
    peak_rss_mib: float | None = None
    peak_device_mib: float | None = None
    involuntary_switches: int | None = None
    steal_s: float | None = None
    """Taken by the host from a CPU this rank may use, on average over those."""
    grad_norm: float | None = None
    run_delay_s: float | None = None
    """How long the main thread could have run and had no processor, read outside of the step."""
    recompute_s: float | None = None
    """Of `backward_s`, how long forwards were recomputed."""
    sample_s: float | None = None
    """How long drawing the edges of a sampled mini-batch took, in whichever thread; else null."""
    gather_s: float | None = None
    """How long its features took to be copied together, likewise."""
    sampled_edges: int | None = None
    """Drawn on this replica, self-loops aside; what several layers use of one draw counts once."""
    virtual_stage_s: list[list[float]] | None = None
    """Forward and backward seconds of each virtual stage of this rank, and under split backward
    those of the gradients of weights, which are part of its backward; null where it has one."""
    weights_s: float | None = None
    """Of `backward_s`, gradients of weights that have spans of their own; null but under the
    schedules zero-bubble and zbv."""
    profiled: bool = False
    """Whether hooks measured each layer in this step, so that averages leave it out."""
    kind: Literal["step"] = "step"


@dataclass(frozen=True)
class SpanRecord:
    """One stretch of one rank's time inside a step, seconds since the step's first barrier."""

    phase: Phase
    step: int
    name: Literal["forward", "backward", "weights", "allreduce", "optimizer", "wait"]
    """A step's `backward_s` are its spans of `backward` and of `weights`."""
    microbatch: int | None
    start_s: float
    end_s: float
    virtual_stage: int = 0
    """The number of a forward's or backward's virtual stage among those of the rank."""
    kind: Literal["span"] = "span"


@dataclass(frozen=True)
class EventRecord:
    """Something that happened once: a checkpoint written, a signal received, a resume."""

    name: str
    at_s: float
    detail: dict[str, Any] = field(default_factory=dict)
    kind: Literal["event"] = "event"


@dataclass(frozen=True)
class Check:
    """One check of the audit; `name` is its flag in summary.csv if it is not passed."""

    name: str
    verdict: Literal["ok", "invalid", "suspect", "inconclusive", "unknown"]
    """`inconclusive` is a flag: validation could not compare. `unknown` is no flag: the system does
    not say."""
    detail: str
    values: dict[str, Any] = field(default_factory=dict)
    __pydantic_config__: ClassVar[dict[str, str]] = _NO_OTHER_KEYS


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
    """Slurm's array task, such as 1234_5, where its script failed before any rank; else None."""
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

"""The record files of one attempt as the audit reads them. Free of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.core.settings import input_error
from gnnhpc.core.versioned_json import read_bytes
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import EventRecord, Header, Phase, SpanRecord, StepRecord

StepKey = tuple[Phase, int]
"""A phase and the number of a step in it."""
Column = npt.NDArray[np.float64]
_LINE: TypeAdapter[Header | StepRecord | SpanRecord | EventRecord] = TypeAdapter(
    Annotated[Header | StepRecord | SpanRecord | EventRecord, Field(discriminator="kind")]
)


@dataclass(frozen=True)
class RankRecords:
    """All records of one rank, in the order of its file."""

    file: str
    header: Header
    steps: Sequence[StepRecord]
    spans: Mapping[StepKey, Sequence[SpanRecord]] = field(default_factory=dict)
    events: Sequence[EventRecord] = ()

    @property
    def rank(self) -> int:
        return self.header.rank

    @cached_property
    def keys(self) -> list[StepKey]:
        return [(each.phase, each.step) for each in self.steps]

    def column(self, name: str) -> Column:
        """A field of all steps, float64 [steps]; NaN where it is missing."""
        values = [getattr(each, name) for each in self.steps]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    @cached_property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Which steps count in averages, bool [steps]: not warm-up and not profiled."""
        return np.array([not (each.warmup or each.profiled) for each in self.steps], np.bool_)

    @cached_property
    def measured_training(self) -> npt.NDArray[np.bool_]:
        training = np.array([each.phase == "train" for each in self.steps], np.bool_)
        return self.measured & training

    def event(self, name: str) -> Mapping[str, Any] | None:
        """The detail of the last event of this name; None without one."""
        details = [each.detail for each in self.events if each.name == name]
        return details[-1] if details else None


@dataclass(frozen=True)
class AttemptRecords:
    """All ranks' records of one attempt and its result."""

    ranks: Sequence[RankRecords]
    result: Result

    @property
    def start(self) -> int:
        """The training step that the attempt began with."""
        return int((self.result.resumed_from or {}).get("step", 0))

    @property
    def replicas(self) -> int:
        return int(self.result.layout["replicas"])


def read_attempt(paths: AttemptPaths, result: Result) -> AttemptRecords:
    """Read the record files of an attempt. Raises InputError for one that is missing or damaged."""
    world_size = int(result.layout["world_size"])
    ranks = [read_rank(paths.records(rank)) for rank in range(world_size)]
    return AttemptRecords(ranks, result)


def read_rank(path: Path) -> RankRecords:
    """Read one rank's file. Raises InputError for a file that is missing, or the damaged line."""
    try:
        lines = read_bytes(path, "the records of a rank").splitlines()
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the records of a rank") from None
    headers, steps, events = [], [], []
    spans: defaultdict[StepKey, list[SpanRecord]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        try:
            record = _LINE.validate_json(line, strict=True)
        except ValidationError as error:
            raise input_error(error, f"{path}:{number}") from None
        if isinstance(record, StepRecord):
            steps.append(record)
        elif isinstance(record, SpanRecord):
            spans[record.phase, record.step].append(record)
        elif isinstance(record, EventRecord):
            events.append(record)
        else:
            headers.append(record)
    if len(headers) != 1:
        raise InputError(path, None, f"{len(headers)} headers", "one header")
    return RankRecords(path.name, headers[0], steps, spans, events)

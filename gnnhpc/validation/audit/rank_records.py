"""The record files of one attempt as the audit reads them. Free of torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
PROCESSORS = "processors"
"""The event in which a rank records what it ran on."""
CUDA_GRAPHS = "cuda graph"
"""The event in which a rank on a GPU records how it computed the steps of each phase."""
Column = npt.NDArray[np.float64]
_LINE: TypeAdapter[Header | StepRecord | SpanRecord | EventRecord] = TypeAdapter(
    Annotated[Header | StepRecord | SpanRecord | EventRecord, Field(discriminator="kind")]
)


@dataclass(frozen=True)
class RankRecords:
    """All records of one rank, in the order of its file."""

    header: Header
    steps: Sequence[StepRecord]
    spans: Mapping[StepKey, Sequence[SpanRecord]]
    processors: Mapping[str, Any]
    """What `audit.processor_use` recorded; empty where training did not end."""
    cuda_graphs: Mapping[str, str]
    """Phase -> how its steps were computed, "eager: " and why without graphs; empty on a CPU."""

    @property
    def rank(self) -> int:
        return self.header.rank

    def column(self, name: str) -> Column:
        """A field of all steps, float64 [steps]; NaN where it is missing."""
        values = [getattr(each, name) for each in self.steps]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    @cached_property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Which steps count in averages, bool [steps]: not warm-up and not profiled."""
        return np.array([not (each.warmup or each.profiled) for each in self.steps], np.bool_)


@dataclass(frozen=True)
class AttemptRecords:
    """All ranks' records of one attempt and its result."""

    ranks: Sequence[RankRecords]
    result: Result

    @property
    def start(self) -> int:
        """The training step that the attempt began with."""
        return int((self.result.resumed_from or {}).get("step", 0))


def read_attempt(paths: AttemptPaths, result: Result) -> AttemptRecords:
    """Read the record files of an attempt. Raises InputError for one that is missing or damaged."""
    ranks = range(int(result.layout["world_size"]))
    return AttemptRecords([_read_rank(paths.records(rank)) for rank in ranks], result)


def _read_rank(path: Path) -> RankRecords:
    try:
        lines = read_bytes(path, "the records of a rank").splitlines()
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the records of a rank") from None
    headers, steps = [], []
    events: dict[str, Mapping[str, Any]] = {}
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
        elif isinstance(record, Header):
            headers.append(record)
        else:
            events[record.name] = record.detail
    if len(headers) != 1:
        raise InputError(path, None, f"{len(headers)} headers", "one header")
    machine, graphs = (events.get(name, {}) for name in (PROCESSORS, CUDA_GRAPHS))
    return RankRecords(headers[0], steps, spans, machine, graphs)

"""Keeps what was measured of each step, to hold a rank's file against once it is written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord

WHOLE = 64
"""Steps that are kept whole, so that a field can be named; of the others a digest."""
_DIGITS = 9
"""After the point, that a file has."""
SPAN_FIELDS = ("name", "microbatch", "start_s", "end_s", "part")


@dataclass
class KeptRecords:
    """Of one rank, in the order of its steps."""

    with_spans: bool = False
    _steps: list[dict[str, Any]] = field(default_factory=list)
    _spans: list[list[list[Any]]] = field(default_factory=list)
    _digests: list[bytes] = field(default_factory=list)
    _compared: int = 0
    """Steps that have been compared with the file, which ends at a byte for them."""
    _offset: int = 0

    def keep(self, record: StepRecord, times: StepTimes) -> None:
        """After each step, what was measured and not what was written."""
        step = {name: _rounded(value) for name, value in dataclasses.asdict(record).items()}
        spans: list[list[Any]] = []
        if self.with_spans:
            spans = [[_rounded(getattr(s, name)) for name in SPAN_FIELDS] for s in times.spans]
        self._digests.append(_digest(step, spans))
        if len(self._steps) < WHOLE:
            self._steps.append(step)
            self._spans.append(spans)

    def differing(self, path: Path) -> str | None:
        """How what was written since the last call differs from what was measured; none if not.

        Raises OSError for a file that cannot be read, ValueError for a line that is no record.
        """
        with path.open("rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
        written = list(_steps_of([json.loads(line) for line in text.splitlines()]))
        if self._compared + len(written) != len(self._digests):
            found = self._compared + len(written)
            return f"{path.name} has {found} steps, {len(self._digests)} were measured"
        for number, (step, spans) in enumerate(written, self._compared):
            if _digest(step, spans) != self._digests[number]:
                where = f"{path.name}: {step.get('phase')} step {step.get('step')}"
                return f"{where} {self._named(number, step, spans)}"
        self._compared, self._offset = len(self._digests), self._offset + len(text)
        return None

    def _named(self, number: int, step: Mapping[str, Any], spans: list[Any]) -> str:
        if number >= len(self._steps):
            return "differs from what was measured"
        for name, value in self._steps[number].items():
            if repr(step.get(name)) != repr(value):
                return f"has {name} {step.get(name)}, measured was {value}"
        kept = self._spans[number]
        for found, value in zip(spans, kept, strict=False):
            if found != value:
                return f"has the span {found}, measured was {value}"
        return f"has {len(spans)} spans, measured were {len(kept)}"


def _steps_of(lines: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Each step of a file, and the spans that follow it."""
    step, spans = None, []
    for line in lines:
        if line["kind"] == "span":
            spans.append([line[name] for name in SPAN_FIELDS])
        elif line["kind"] == "step":
            if step is not None:
                yield step, spans
            step, spans = line, []
    if step is not None:
        yield step, spans


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _digest(step: Mapping[str, Any], spans: list[Any]) -> bytes:
    """Of values as Python writes them: what is no number is equal to itself there."""
    text = repr((sorted(step.items()), spans))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()

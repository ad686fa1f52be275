"""What a rank's file reports of each step's learning, read back from the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.records.schema import Phase, read_lines


@dataclass(frozen=True)
class ReportedStep:
    """One step's metrics."""

    phase: Phase
    step: int
    metrics: Mapping[str, float | None]
    """By name, `loss` among them."""


def read_reported(path: Path) -> list[ReportedStep]:
    """All steps of a rank's file, in its order. Raises OSError, and InputError for damage."""
    return [
        ReportedStep(line["phase"], line["step"], {"loss": line["loss"], **line["metrics"]})
        for line in read_lines(path)
        if line["kind"] == "step"
    ]

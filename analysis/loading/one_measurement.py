"""Which cells of two runs are one measurement that was copied: rank 0's records tell."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.records.run_paths import RunPaths

if TYPE_CHECKING:
    from analysis.loading.run import Run


def records_of(root: Path, cell: str, attempt: float | None) -> Path | None:
    """Rank 0's records of an attempt of a cell; None for a cell without one."""
    if attempt is None or math.isnan(attempt):
        return None
    return RunPaths(root).cell(cell).attempt(int(attempt)).records(0)


def measurement_digest(records: Path | None) -> str:
    """Of the content of rank 0's records; empty where there are none, which loading has said."""
    try:
        return hashlib.sha256(records.read_bytes()).hexdigest() if records else ""
    except OSError:
        return ""


def copied_cells(a: Run, b: Run) -> list[str]:
    """The cells that count in both runs with the same records."""
    digests = [_digests(run) for run in (a, b)]
    return [cell for cell, one in digests[0].items() if one and digests[1].get(cell) == one]


def _digests(run: Run) -> dict[str, str]:
    counted = run.cells[run.cells["counts"].astype(bool)]
    return {
        str(cell): measurement_digest(records_of(run.root, str(cell), attempt))
        for cell, attempt in zip(counted["cell"], counted["attempt"], strict=True)
    }

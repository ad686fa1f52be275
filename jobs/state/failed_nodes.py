"""The nodes where a cell failed by the node's fault, as far as its records tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import is_fault_of_node
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import read_if_whole, read_lines
from jobs.state.states import CellStatus


def failed_nodes(paths: RunPaths, cells: Sequence[CellStatus]) -> list[str]:
    """Names of nodes where a rank was lost or hung, in any attempt.

    Of a cell that is lost, as by a node that failed, those whose ranks ended without a word.
    """
    found: set[str] = set()
    for cell in cells:
        attempts = paths.cell(cell.cell).attempts()
        for attempt in attempts:
            found.update(_blamed(attempt))
        if cell.state == "lost" and attempts:
            found.update(_silent(attempts[-1]))
    return sorted(found)


def _blamed(attempt: AttemptPaths) -> Iterator[str]:
    result = read_if_whole(attempt.result)
    if result is None or result.failure is None or not result.provenance.get("slurm"):
        return
    if is_fault_of_node(result.failure):
        yield result.failure.host


def _silent(attempt: AttemptPaths) -> Iterator[str]:
    """Hosts of the ranks that wrote records and no failure."""
    for records in sorted(attempt.root.glob("rank-*.jsonl")):
        with contextlib.suppress(InputError):
            lines = read_lines(records)
            if (
                lines
                and lines[0].get("slurm")
                and not records.with_suffix(".failure.json").exists()
            ):
                yield str(lines[0]["host"])

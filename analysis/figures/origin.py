"""Where a figure comes from, as metadata in its files: run, cells, code, and how to remake it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.load.comparable import SEPARATE
from analysis.summary.baseline_and_speedup import Baseline

if TYPE_CHECKING:
    from analysis.load.run_data import RunData as Run


@dataclass(frozen=True)
class Origin:
    """What a figure was drawn of."""

    run: str
    """Name of the run, or names of several."""
    cells: tuple[str, ...]
    """Ids of the cells that are in it."""
    code: str
    """Commit and digest of the code that measured."""
    remade_by: str = ""
    """The command that draws it again, of a copy of the run."""

    def png(self, name: str) -> dict[str, str]:
        """Text chunks of a PNG."""
        return {
            "Title": name,
            "Run": self.run,
            "Code": self.code,
            "Cells": " ".join(self.cells),
            "Comment": self.remade_by,
        }

    def pdf(self, name: str) -> dict[str, str]:
        """Fields of a PDF's information dictionary, which has no others."""
        return {
            "Title": name,
            "Subject": f"run {self.run}; code {self.code}; {self.remade_by}",
            "Keywords": " ".join(self.cells),
        }


def origin_of(
    run: Run,
    cells: Iterable[str],
    figure: str,
    baseline: Baseline | None = None,
    width: str | None = None,
) -> Origin:
    """Of a figure of these cells of a run, drawn at a width that was asked for.

    `baseline` is what its speedups are over; None for a figure without any.
    """
    names = tuple(map(str, cells))
    digests = {run.environments.get(name, {}).get("code") or "unknown" for name in names}
    commit = (run.provenance or {}).get("commit") or "unknown"
    command = f"gnnhpc report {' '.join(run.runs) or run.name} --only {figure}"
    if baseline is not None and baseline != Baseline():
        command += f" --baseline {baseline.option}"
    command += " --separate" if SEPARATE in run.settings else ""
    command += f" --width {width}" if width else ""
    # A figure of several runs belongs into none of their folders.
    command += " --out DIR" if run.runs else ""
    code = f"commit {commit}, digest {', '.join(sorted(digests))}"
    return Origin(run.name, names, code, f"remade by: {command}")

"""What a run folder offers a reviewer: the loaded run, its manifest and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.loading.run import Run, load
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result


@dataclass(frozen=True)
class Finding:
    """One question's answer."""

    question: str
    ok: bool
    detail: str

    @property
    def line(self) -> str:
        return f"{'ok' if self.ok else 'NOT OK':<7} {self.question}: {self.detail}"


@dataclass(frozen=True)
class Evidence:
    """A run as it is asked about."""

    run: Run
    paths: RunPaths
    manifest: Sequence[Cell]
    results: Sequence[Result]
    """Of the attempts that are used and ended as done, without damaged ones."""
    repeats: int
    """The fewest that are asked for."""
    data_root: Path | None
    """Where to look for data; None: where each cell took it from."""


def read_evidence(root: Path, repeats: int, data_root: Path | None) -> Evidence:
    """Raises InputError for a path that is no run folder."""
    run, paths = load(root), RunPaths(root)
    used = run.cells[run.cells["status"] == "done"]
    results = [
        Result.read(paths.cell(str(cell)).attempt(int(number)).result)
        for cell, number in zip(used["cell"], used["attempt"], strict=True)
    ]
    return Evidence(run, paths, read_manifest(paths.manifest), results, repeats, data_root)


def few(items: Sequence[str], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more

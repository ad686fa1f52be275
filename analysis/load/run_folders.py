"""The cells of run folders: their plan, their attempts, and the record files that count.

Of several runs that are loaded together, a cell that one lacks counts where another has it, a cell
that several measured is a repeat more, and a copied measurement counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.load.comparable import environment_of
from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import read_provenance
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts

RankFile = tuple[Path, Mapping[str, Any] | None]
"""A rank's record file, and the size and SHA-256 that the result has of it; None for an attempt
that is not done."""


@dataclass
class StoredCell:
    """A cell of the manifest, and what its attempts left."""

    run: str
    """The name of the run."""
    plan: Cell
    attempts: int
    """How many there are."""
    used: Attempt | None
    """The attempt that counts; None without any."""
    name: str = ""
    """The cell's id; with `@` and the run's name where an earlier run of the report has the id."""
    headers: list[Mapping[str, Any]] = field(default_factory=list)
    """The ranks' headers of the attempt that counts and of those that it resumed."""

    @cached_property
    def environment(self) -> dict[str, str]:
        """What the cell ran in; empty without records."""
        return environment_of(self.headers)

    @property
    def damaged(self) -> bool:
        """Whether a file of the attempt that counts is damaged."""
        return self.used is not None and bool(self.used.damage)

    def mark_damaged(self, words: str) -> None:
        """Mark the attempt that counts as damaged, unless it is already."""
        if self.used and not self.damaged:
            self.used = replace(self.used, damage=words)

    @property
    def measurement(self) -> str:
        """Equal for copies of one measurement, by the records of rank 0; empty for none that
        ended."""
        if self.used is None or self.used.status == "unfinished":
            return ""
        records = self.used.result.records if self.used.result else {}
        digest = records.get(self.used.paths.records(0).name, {}).get("sha256")
        return str(digest or self.run)

    def files(self) -> Iterator[RankFile]:
        """The rank files of the attempt that counts and, as its result lists them, of those that it
        resumed.

        Of an attempt that is not done only its own that are there.
        """
        used = self.used
        if used is None or self.damaged:
            return
        done = used.status == "done"
        written = used.result.records if used.result and done else {}
        for folder in dict.fromkeys(["", *(entry.rpartition("rank-")[0] for entry in written)]):
            name = Path(folder).name or used.paths.root.name
            attempt = AttemptPaths(used.paths.root.with_name(name))
            for rank in range(self.plan.experiment.process_layout.world_size):
                path = attempt.records(rank)
                if done or path.exists():
                    yield path, written.get(f"{folder}{path.name}")


def run_folders(roots: Sequence[Path]) -> dict[str, RunPaths]:
    """Each run's folder by its name, or by its whole path where two have the same name.

    Raises InputError for a folder that is given twice.
    """
    places = [root.resolve() for root in roots]
    if len(set(places)) < len(places):
        raise InputError(roots[-1], None, "the same folder twice", "different runs")
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = [str(place) for place in places]
    return {name: RunPaths(root) for name, root in zip(names, roots, strict=True)}


def cells_of_runs(folders: Mapping[str, RunPaths]) -> tuple[list[StoredCell], list[str]]:
    """Each measurement of each cell once, with a name; and how many cells of which run, in lines.

    Raises InputError for a folder or manifest that is missing or damaged.
    """
    found = [cell for run, paths in folders.items() for cell in _read_cells(run, paths)]
    measured = {cell.plan.id for cell in found if cell.measurement}
    kept: dict[tuple[str, str], StoredCell] = {}
    names: set[str] = set()
    for cell in found:
        one, measurement = cell.plan.id, cell.measurement
        # Of cells that no run measured one is enough.
        if (one, measurement) in kept or (one in measured and not measurement):
            continue
        cell.name = f"{one}@{cell.run}" if one in names else one
        names.add(cell.name)
        kept[one, measurement] = cell
    if len(folders) == 1:
        return list(kept.values()), []
    counts = Counter(cell.run for cell in kept.values())
    sizes = ", ".join(f"{run} ({counts[run]} cells)" for run in folders)
    lines = [f"Several runs in one report: {sizes}."]
    if left_out := len(found) - len(kept):
        lines.append(f"{left_out} cells are copies, or were measured in another run.")
    return list(kept.values()), lines


def _read_cells(run: str, paths: RunPaths) -> Iterator[StoredCell]:
    """The cells of one run, in the order of its manifest.

    An attempt that counts and whose result is another cell's is damaged.
    """
    if not paths.root.is_dir():
        raise InputError(paths.root, None, "no such folder", "a run folder")
    for plan in read_manifest(paths.manifest):
        attempts = read_attempts(paths.cell(plan.id))
        cell = StoredCell(run, plan, len(attempts), choose_attempt(attempts))
        result = cell.used.result if cell.used else None
        if cell.used and result and (result.cell, result.attempt) != (plan.id, cell.used.number):
            found, allowed = f"{result.cell}, attempt {result.attempt}", "as the folder says"
            cell.mark_damaged(str(InputError(cell.used.paths.result, "cell", found, allowed)))
        yield cell


def joined_provenance(folders: Iterable[RunPaths]) -> dict[str, str]:
    """The text of each key of provenance.json, with each value that runs have once; empty without
    the file, and InputError for a damaged one."""
    known = [one for one in map(read_provenance, folders) if one is not None]
    texts = {key: [_text(one.get(key)) for one in known] for one in known for key in one}
    return {key: "; ".join(dict.fromkeys(values)) for key, values in texts.items()}


def _text(value: object) -> str:
    """A value of provenance.json in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")

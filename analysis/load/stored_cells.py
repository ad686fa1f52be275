"""A cell as a run folder has it: its plan, its attempts, and the record files that count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.load.comparable import environment_of
from analysis.load.read_records import RankFile
from analysis.load.validate_records import check_result
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts


@dataclass
class StoredCell:
    """A cell of the manifest, and what its attempts left."""

    name: str
    """The cell's id; with `@` and the run's name where an earlier run of the report has the id."""
    run: str
    """The name of the run."""
    plan: Cell
    attempts: list[Attempt]
    """Oldest first."""
    position: int | None
    """Which of the attempts counts; None without any."""
    headers: list[Mapping[str, Any]] = field(default_factory=list)
    """The ranks' headers of the attempt that counts and of those that it resumed."""

    @property
    def used(self) -> Attempt | None:
        """The attempt that counts."""
        return None if self.position is None else self.attempts[self.position]

    @cached_property
    def environment(self) -> dict[str, str]:
        """What the cell ran in; empty without records."""
        return environment_of(self.headers)

    def mark_damaged(self, words: str) -> None:
        """Mark the attempt that counts as damaged, unless it is already."""
        if self.position is not None and not self.attempts[self.position].damage:
            self.attempts[self.position] = replace(self.attempts[self.position], damage=words)

    def files(self) -> Iterator[RankFile]:
        """The rank files of the attempt that counts and, as its result lists them, of those that it
        resumed.

        Of an attempt that is not done only its own that are there.
        """
        used = self.used
        if used is None or used.damage:
            return
        done = used.status == "done"
        written = used.result.records if used.result and done else {}
        for folder in dict.fromkeys(["", *(entry.rpartition("rank-")[0] for entry in written)]):
            name = Path(folder).name or used.paths.root.name
            attempt = AttemptPaths(used.paths.root.with_name(name))
            for rank in range(self.plan.experiment.process_layout.world_size):
                path = attempt.records(rank)
                if done or path.exists():
                    expected = {"cell": self.plan.id, "attempt": attempt.number, "rank": rank}
                    entry = written.get(f"{folder}{path.name}")
                    yield RankFile(path, self.name, expected, entry)


def read_cells(folders: Mapping[str, RunPaths]) -> list[StoredCell]:
    """The cells of all runs, by the run's name, in the order of the manifests.

    An attempt that counts and whose result is another cell's is damaged. Raises InputError for a
    folder or manifest that is missing or damaged.
    """
    stored: list[StoredCell] = []
    ids: set[str] = set()
    for run, paths in folders.items():
        if not paths.root.is_dir():
            raise InputError(paths.root, None, "no such folder", "a run folder")
        for plan in read_manifest(paths.manifest):
            attempts = read_attempts(paths.cell(plan.id))
            used = choose_attempt(attempts)
            position = None if used is None else attempts.index(used)
            name = f"{plan.id}@{run}" if plan.id in ids else plan.id
            cell = StoredCell(name, run, plan, attempts, position)
            try:
                if used and not used.damage:
                    check_result(plan, used)
            except InputError as error:
                cell.mark_damaged(str(error))
            stored.append(cell)
        ids |= {cell.plan.id for cell in stored}
    return stored

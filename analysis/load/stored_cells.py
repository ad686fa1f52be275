"""A cell as a run folder has it: its plan, its attempts, and the record files that count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.load.comparable import environment_of
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.core.versioned_json import parse_object, read_bytes
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import Attempt, choose_attempt, read_attempts
from gnnhpc.records.schema import check_header

_EVENT = b'"kind": "event"'
"""What the line of an event contains, as it is written."""


@dataclass(frozen=True)
class RankFile:
    """One rank's record file in one attempt at a cell."""

    path: Path
    written: Mapping[str, Any] | None = None
    """Size and SHA-256 that the result has of this file; None for an attempt that is not done."""

    def read(self) -> tuple[dict[str, Any] | None, bytes]:
        """The header, and the complete lines of steps and spans.

        None and nothing for a file whose rank died before it had written its header. Raises
        InputError for a missing file, for one that changed since it was written, and for one of
        another cell or attempt.
        """
        first, newline, body = self._content().partition(b"\n")
        if not newline:
            return None, b""
        raw = parse_object(first, f"{self.path}:1", "one record a line")
        header, attempt = check_header(raw, self.path), AttemptPaths(self.path.parent)
        for key, value in (("cell", attempt.cell), ("attempt", attempt.number)):
            if header[key] != value:
                raise InputError(self.path, key, header[key], f"{value}, as its path says")
        lines = body[: body.rfind(b"\n") + 1]
        if _EVENT in lines:
            # The detail of an event has no fixed columns.
            lines = b"".join(one for one in lines.splitlines(keepends=True) if _EVENT not in one)
        return header, lines

    def _content(self) -> bytes:
        """The whole file; events may follow after what the result has a digest of."""
        try:
            content = read_bytes(self.path, "the records of each rank")
        except FileNotFoundError:
            raise InputError(self.path, None, "no such file", "the records of each rank") from None
        if self.written is not None:
            size = self.written["size"]
            unchanged = hashlib.sha256(content[:size]).hexdigest() == self.written["sha256"]
            if not unchanged or any(_EVENT not in one for one in content[size:].splitlines()):
                found = "changed since it was written"
                raise InputError(self.path, "content", found, "as result.json has it")
        return content


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
    def measured(self) -> bool:
        """Whether an attempt ended."""
        return self.used is not None and self.used.status != "unfinished"

    @property
    def digest(self) -> str:
        """The SHA-256 of rank 0's records, which a copy of the measurement has too."""
        if self.used is None or self.used.result is None:
            return ""
        name = self.used.paths.records(0).name
        return str(self.used.result.records.get(name, {}).get("sha256", ""))

    @property
    def damaged(self) -> bool:
        """Whether a file of the attempt that counts is damaged."""
        return self.used is not None and bool(self.used.damage)

    def mark_damaged(self, words: str) -> None:
        """Mark the attempt that counts as damaged, unless it is already."""
        if self.used and not self.damaged:
            self.used = replace(self.used, damage=words)

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
                    yield RankFile(path, written.get(f"{folder}{path.name}"))


def read_cells(run: str, paths: RunPaths) -> Iterator[StoredCell]:
    """The cells of one run, in the order of its manifest.

    An attempt that counts and whose result is another cell's is damaged. Raises InputError for a
    folder or manifest that is missing or damaged.
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

"""Every file name of a run folder, in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnhpc.core.errors import InputError

ATTEMPT = re.compile(r"^attempt-([1-9]\d*)$")


class _Owner(Protocol):
    @property
    def root(self) -> Path: ...


class _Below:
    """An attribute that is the path of a file or folder below its owner's root."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: _Owner, kind: type) -> Path:
        return owner.root / self._name


@dataclass(frozen=True)
class AttemptPaths:
    """One attempt at a cell: `cells/<cell id>/attempt-<n>/`."""

    root: Path
    result = _Below("result.json")
    checkpoints = _Below("checkpoints")

    @property
    def number(self) -> int:
        match = ATTEMPT.match(self.root.name)
        if match is None:
            raise ValueError(f"{self.root} is no attempt folder")
        return int(match[1])

    @property
    def cell(self) -> str:
        """The id of the cell."""
        return self.root.parent.name

    def records(self, rank: int) -> Path:
        return self.root / f"rank-{rank:04d}.jsonl"

    def log(self, rank: int) -> Path:
        return self.root / f"rank-{rank:04d}.log"

    def failure(self, rank: int) -> Path:
        """The first failure that one rank reports, written before result.json."""
        return self.root / f"rank-{rank:04d}.failure.json"


@dataclass(frozen=True)
class CellPaths:
    """All attempts at one cell: `cells/<cell id>/`."""

    root: Path

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.root / f"attempt-{number}")

    def attempts(self) -> list[AttemptPaths]:
        """The attempts that exist, oldest first; none where there is no folder.

        Raises InputError for a folder that cannot be read.
        """
        try:
            entries = list(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            found = f"unreadable ({error.strerror})"
            raise InputError(self.root, None, found, "the attempts at a cell") from None
        paths = [AttemptPaths(entry) for entry in entries if ATTEMPT.match(entry.name)]
        return sorted(paths, key=lambda attempt: attempt.number)

    def claim_attempt(self) -> AttemptPaths:
        """Make the next attempt's folder; two claims at once get two numbers."""
        self.root.mkdir(parents=True, exist_ok=True)
        existing = self.attempts()
        number = existing[-1].number + 1 if existing else 1
        while True:
            attempt = self.attempt(number)
            try:
                attempt.root.mkdir()
            except FileExistsError:
                number += 1
            else:
                return attempt


@dataclass(frozen=True)
class RunPaths:
    """A run folder: one submitted sweep."""

    root: Path
    sweep = _Below("sweep.yaml")
    manifest = _Below("manifest.jsonl")
    provenance = _Below("provenance.json")
    arrays = _Below("arrays")
    submissions = _Below("submissions.jsonl")
    """One line a submitted array: job id, array, indices, when, by which command."""
    logs = _Below("logs")
    """Output of a job before its worker has made an attempt's folder."""
    cells = _Below("cells")
    report = _Below("report")
    code = _Below("code")
    """Sources that the run was planned with: gnnhpc's packages and custom models."""
    code_record = _Below("code.json")
    """Digests of the packages in `code/` when the run was made."""

    def script(self, array: str) -> Path:
        return self.arrays / f"{array}.sbatch"

    def block_table(self, array: str) -> Path:
        """The cells of each block of an array of blocks, such as vig-paired."""
        return self.arrays / f"{array}.cells"

    def cell(self, cell_id: str) -> CellPaths:
        return CellPaths(self.cells / cell_id)

    def custom_model(self, digest: str) -> Path:
        """The folder of a custom model whose sources have this digest."""
        return self.code / f"model-{digest}"

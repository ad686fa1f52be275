"""What of a run folder nobody needs any more: no report, no `check`, no rerun and no resume."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Result, read_if_whole
from jobs.folder.attempt_files import list_attempts
from jobs.folder.disk_use import disk_use

CHECKPOINTS = "checkpoints of done cells"
RECORDS = "records of invalid attempts that a valid one replaced"
SUBMITIT = "submitit's scripts and pickles"
TEMPORARY = "temporary files of processes that died"
KINDS = (CHECKPOINTS, RECORDS, SUBMITIT, TEMPORARY)
_TEMPORARY_AFTER_S = 3600.0
"""A younger one may be another command's, which is about to rename it."""


@dataclass(frozen=True)
class Removable:
    """One file or folder."""

    kind: str
    path: Path
    size: int | None
    """Bytes on disk; None where a part is unreadable."""


def find_removable(paths: RunPaths) -> list[Removable]:
    """All that may be removed once no cell of the run is running or waiting.

    What stays: every result, failure and log; the records of each valid attempt, and of those that
    it went on from; all of a cell that has no valid attempt, but for checkpoints from before a done
    one; manifest, submissions, provenance, scripts and code.
    """
    return [
        Removable(kind, path, disk_use(path))
        for kind, path in _candidates(paths)
        if path.exists() and not path.is_symlink()
    ]


def _candidates(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    for attempts in list_attempts(paths).values():
        results = {attempt.number: read_if_whole(attempt.result) for attempt in attempts}
        yield from ((CHECKPOINTS, path) for path in _checkpoints(attempts, results))
        yield from ((RECORDS, path) for path in _records(attempts, results))
    yield SUBMITIT, paths.root / ".submitit"
    yield from ((TEMPORARY, path) for path in _temporaries(paths))


def _checkpoints(attempts: list[AttemptPaths], results: dict[int, Result | None]) -> Iterator[Path]:
    """Those up to the newest done attempt: later ones begin at step 0, or at a later checkpoint."""
    done = [number for number, result in results.items() if result and result.status == "done"]
    last = max(done, default=0)
    return (attempt.checkpoints for attempt in attempts if attempt.number <= last)


def _records(attempts: list[AttemptPaths], results: dict[int, Result | None]) -> Iterator[Path]:
    """Those of attempts that are older than a valid one, and that no valid one went on from.

    Attempts without a result stay: their records alone say what they went on from.
    """
    valid = [number for number, result in results.items() if result and result.valid]
    needed = {number for each in valid for number in _chain(each, results)}
    for attempt in attempts:
        replaced = attempt.number < max(valid, default=0) and attempt.number not in needed
        if replaced and results[attempt.number] is not None:
            yield from sorted(attempt.root.glob("rank-*.jsonl"))


def _chain(number: int, results: dict[int, Result | None]) -> set[int]:
    """An attempt and those that it went on from; all earlier ones where one does not say."""
    found = {number}
    while (result := results.get(number)) is not None and result.resumed_from is not None:
        before = result.resumed_from.get("attempt")
        if not isinstance(before, int) or before >= number:
            return found | set(range(1, number))
        number = before
        found.add(number)
    return found if result is not None else found | set(range(1, number))


def _temporaries(paths: RunPaths) -> Iterator[Path]:
    """Names that `write_atomically`, checkpoints and reports give what is not finished."""
    before = time.time() - _TEMPORARY_AFTER_S
    for folder, folders, files in os.walk(paths.root):
        if Path(folder) == paths.root:
            folders[:] = [name for name in folders if name not in ("code", ".submitit")]
        unfinished = [
            name
            for name in (*folders, *files)
            if name.startswith(".") and name.endswith((".tmp", ".partial"))
        ]
        folders[:] = [name for name in folders if name not in unfinished]
        for path in (Path(folder) / name for name in sorted(unfinished)):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    yield path

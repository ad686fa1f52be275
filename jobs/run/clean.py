"""Removes from a run folder what no report, check, rerun or resume needs any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.attempts import Attempt, resume_chain
from jobs.run.cell_state import MAY_RUN
from jobs.run.known_runs import disk_use
from jobs.run.run_state import RunState, open_run, read_run
from jobs.run.status import status_of
from jobs.run.submission_records import run_lock

CHECKPOINTS = "checkpoints of done cells"
RECORDS = "records of invalid attempts that a valid one replaced"
TEMPORARY = "temporary files of processes that died"
KINDS = (CHECKPOINTS, RECORDS, TEMPORARY)
_TEMPORARY_AFTER_S = 3600.0
"""A younger file may be another command's, which is about to rename it."""


@dataclass(frozen=True)
class Removable:
    """One file or folder."""

    kind: str
    path: Path
    size: int | None
    """Bytes on disk; None where a part is unreadable."""


def find_removable(run: str | Path) -> list[Removable]:
    """What `clean` would remove; raises InputError while a cell runs, waits or may do so.

    Results, failures, logs, the records of valid attempts and of those that they resumed from,
    manifest, submissions, provenance, scripts and code stay.
    """
    state = read_run(run)
    busy = [cell for cell in status_of(state, fresh=True).cells if cell.state in MAY_RUN]
    if busy:
        first = f"{busy[0].array} {busy[0].index}, which is {busy[0].state}"
        found = f"{first}, and {len(busy) - 1} more such cells" if len(busy) > 1 else first
        allowed = "a run whose cells have ended: wait, or cancel first"
        raise InputError(state.paths.root, None, found, allowed)
    return [
        Removable(kind, path, disk_use(path))
        for kind, path in _candidates(state)
        if path.exists() and not path.is_symlink()
    ]


def clean(run: str | Path, chosen: Sequence[Removable]) -> list[Removable]:
    """Remove those of `chosen` that may still be removed; returns them.

    Raises InputError as `find_removable`, and GnnhpcError for what cannot be removed, after the
    rest is.
    """
    names = {one.path for one in chosen}
    failed: list[str] = []
    removed: list[Removable] = []
    with run_lock(open_run(run)):
        for one in find_removable(run):
            if one.path not in names:
                continue
            try:
                shutil.rmtree(one.path) if one.path.is_dir() else one.path.unlink()
                removed.append(one)
            except OSError as error:
                failed.append(f"{error.filename or one.path}: {error.strerror}")
    if failed:
        raise GnnhpcError(f"{failed[0]}; {len(failed)} of {len(chosen)} could not be removed")
    return removed


def _candidates(state: RunState) -> Iterator[tuple[str, Path]]:
    for attempts in state.attempts.values():
        last_done = max((one.number for one in attempts if one.status == "done"), default=0)
        # A later attempt begins at step 0, or at a later checkpoint.
        for attempt in attempts:
            if attempt.number <= last_done:
                yield CHECKPOINTS, attempt.paths.checkpoints
        for path in _replaced_records(attempts):
            yield RECORDS, path
    for path in _temporary_files(state.paths):
        yield TEMPORARY, path


def _replaced_records(attempts: Sequence[Attempt]) -> Iterator[Path]:
    """Records of attempts that are older than a valid one, and that no valid one resumed from.

    Attempts without a result stay: only their records say what they resumed from.
    """
    valid = [attempt for attempt in attempts if attempt.valid]
    needed = {used.attempt for one in valid for used in resume_chain(one, attempts)}
    newest = max((attempt.number for attempt in valid), default=0)
    for attempt in attempts:
        replaced = attempt.number < newest and attempt.paths not in needed
        if replaced and attempt.result is not None:
            yield from sorted(attempt.paths.root.glob("rank-*.jsonl"))


def _temporary_files(paths: RunPaths) -> Iterator[Path]:
    """Files with the names that unfinished writes have."""
    before = time.time() - _TEMPORARY_AFTER_S
    for folder, folders, files in os.walk(paths.root):
        if Path(folder) == paths.root:
            folders[:] = [name for name in folders if name != "code"]
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

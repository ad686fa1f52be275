"""Removes from a run folder what nobody needs any more."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.folder.locked_files import open_run, run_lock
from jobs.folder.removable import Removable, find_removable
from jobs.state.run_status import status
from jobs.state.states import MAY_RUN


def what_to_clean(run: str | Path) -> list[Removable]:
    """What `clean` would remove; raises InputError while a cell runs, waits or may do so."""
    paths = open_run(run)
    _check_nothing_runs(paths)
    return find_removable(paths)


def clean(run: str | Path, chosen: Sequence[Removable]) -> list[Removable]:
    """Remove those of `chosen` that may still be removed; returns them.

    Raises InputError as `what_to_clean`, and GnnhpcError for what cannot be removed, once the rest
    is.
    """
    paths = open_run(run)
    wanted = {one.path for one in chosen}
    failed: list[str] = []
    removed: list[Removable] = []
    with run_lock(paths):
        _check_nothing_runs(paths)
        for one in find_removable(paths):
            if one.path in wanted:
                try:
                    _remove(one.path)
                    removed.append(one)
                except OSError as error:
                    failed.append(f"{error.filename or one.path}: {error.strerror}")
    if failed:
        raise GnnhpcError(f"{failed[0]}; {len(failed)} of {len(chosen)} could not be removed")
    return removed


def _check_nothing_runs(paths: RunPaths) -> None:
    current = status(paths.root, fresh=True)
    busy = [cell for cell in current.cells if cell.state in MAY_RUN]
    if busy:
        first = f"{busy[0].array} {busy[0].index}, which is {busy[0].state}"
        found = f"{first}, and {len(busy) - 1} more such cells" if len(busy) > 1 else first
        allowed = "a run whose cells have ended: wait, or cancel first"
        raise InputError(paths.root, None, found, allowed)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()

"""Removes the checkpoints of done cells, which no report, check, rerun or resume needs any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from jobs.run.cell_state import MAY_RUN
from jobs.run.run_state import open_run, read_run
from jobs.run.status import status
from jobs.run.submission_records import run_lock


def find_removable(run: str | Path) -> list[Path]:
    """The folders of checkpoints of done cells.

    An attempt after the last one that is done keeps its own, since a rerun resumes from them.
    Raises InputError while a cell of the run runs, waits or may do so.
    """
    state = read_run(run)
    busy = sum(cell.state in MAY_RUN for cell in status(state).cells)
    if busy:
        found = f"{busy} cells that run, wait or may"
        allowed = "a run whose cells have ended: wait, or cancel first"
        raise InputError(state.paths.root, None, found, allowed)
    folders = []
    for attempts in state.attempts.values():
        last_done = max((one.number for one in attempts if one.status == "done"), default=0)
        folders += [one.paths.checkpoints for one in attempts if one.number <= last_done]
    return [folder for folder in folders if folder.is_dir()]


def clean(run: str | Path) -> list[Path]:
    """Remove these folders; returns them.

    Raises InputError as `find_removable`, and GnnhpcError for what cannot be removed.
    """
    with run_lock(open_run(run)):
        folders = find_removable(run)
        for path in folders:
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise GnnhpcError(f"{error.filename or path}: {error.strerror}") from None
    return folders

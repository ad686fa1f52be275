"""Finds the log file of a cell."""

from __future__ import annotations

from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from jobs.folder.attempt_files import ManifestEntry, read_manifest_entries
from jobs.folder.locked_files import open_run


def find_log(
    run: str | Path, cell: str, rank: int | None = None, attempt: int | None = None
) -> Path:
    """The log of one rank: of `rank`, else of the first rank that failed, else of rank 0.

    `cell` is a cell's id, the start of one, or array:index. Without an attempt, the log of the
    cell's job is returned. Raises InputError for an unknown cell, attempt or rank.
    """
    paths = open_run(run)
    entry = find_cell(read_manifest_entries(paths.manifest), cell)
    attempts = {one.number: one for one in paths.cell(entry.id).attempts()}
    if attempt is not None and attempt not in attempts:
        raise InputError(
            "--attempt", None, attempt, _choices(attempts) or "none, it was never tried"
        )
    check_rank(entry, rank)
    if not attempts:
        return _job_log(paths, entry)
    chosen = attempts[attempt or max(attempts)]
    log = chosen.log(_first_failing(chosen, entry.world_size) if rank is None else rank)
    if log.is_file():
        return log
    return _job_log(paths, entry)


def check_rank(entry: ManifestEntry, rank: int | None) -> None:
    """Raises InputError for a rank that the cell does not have."""
    if rank is not None and not 0 <= rank < entry.world_size:
        raise InputError("--rank", None, rank, f"0 to {entry.world_size - 1}")


def find_cell(entries: list[ManifestEntry], cell: str) -> ManifestEntry:
    """The cell with this id, start of an id, or array:index; InputError unless it is one."""
    array, colon, index = cell.rpartition(":")
    if colon:
        found = [p for p in entries if p.array == array and str(p.index) == index]
    else:
        found = [p for p in entries if p.id == cell] or [
            p for p in entries if p.id.startswith(cell)
        ]
    if len(found) == 1:
        return found[0]
    example = f"{entries[0].array}:{entries[0].index} or {entries[0].id}" if entries else "none"
    what = f"{cell!r}, which {len(found)} cells begin with" if found else repr(cell)
    raise InputError("CELL", None, what, f"a cell's id or array:index, such as {example}")


def _first_failing(attempt: AttemptPaths, world_size: int) -> int:
    first = recorded_cause(attempt, world_size)
    return first.rank if first else 0


def newest_job_log(paths: RunPaths, entry: ManifestEntry) -> Path | None:
    """The log of the newest job of this cell, written before the ranks opened theirs."""
    logs = list(paths.logs.glob(f"{entry.array}-{entry.index}-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def _job_log(paths: RunPaths, entry: ManifestEntry) -> Path:
    log = newest_job_log(paths, entry)
    if log is None:
        raise InputError(
            paths.logs, None, f"no log of {entry.array} {entry.index}", "a cell that was started"
        )
    return log


def _choices(numbers: dict[int, AttemptPaths]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))

"""The copy of the packages that a run keeps in `code/`, and whether this process runs it.

A run that was submitted with `--live` keeps none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import ROOT, files_below, git_commit
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import build_record, read_object, write_atomically

PACKAGES = ("gnnhpc", "jobs")
"""What a job imports."""
_ALLOWED = "the code as submitted, or --live to run this checkout"


@dataclass(frozen=True)
class CodeSnapshot:
    """RUN/code.json: the content of `code/` when the run was made."""

    code: str
    """Digest of the sources of gnnhpc, which results have too."""
    commit: str | None
    origin: str
    """The folder that the packages were copied from."""
    files: dict[str, str]
    """SHA-256 of each file, by its path below `code/`."""
    version: Literal[1] = 1

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class CodeOrigin:
    """Where the code of a process comes from; results record it."""

    kind: Literal["snapshot", "live"] = "live"
    """`snapshot` is the copy in the run folder; `live` is what was in the checkout or installed."""
    snapshot_commit: str | None = None
    """Commit of the checkout that the snapshot was taken from."""

    def commit(self) -> str | None:
        return self.snapshot_commit if self.kind == "snapshot" else git_commit()


def file_digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of the packages below `root`; raises OSError for an unreadable one."""
    found = {}
    for package in PACKAGES:
        for path in files_below(root / package):
            found[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def read_snapshot(paths: RunPaths) -> CodeSnapshot | None:
    """The record of the run's code, None without one; raises InputError for a damaged one."""
    where = paths.code_record
    try:
        raw = read_object(where, _ALLOWED)
    except FileNotFoundError:
        return None
    return build_record(CodeSnapshot, raw, where)


def check_snapshot(paths: RunPaths) -> CodeSnapshot | None:
    """Like `read_snapshot`, but also raises InputError if a file of the code has changed."""
    snapshot = read_snapshot(paths)
    if snapshot is None:
        return None
    try:
        found = file_digests(paths.code)
    except OSError as error:
        what = f"{error.filename} unreadable ({error.strerror})"
        raise InputError(paths.code, None, what, _ALLOWED) from None
    for name in sorted(found | snapshot.files):
        if found.get(name) != snapshot.files.get(name):
            how = "changed" if name in found else "missing"
            what = f"{name} {how} since the run was submitted"
            raise InputError(paths.code, None, what, _ALLOWED)
    return snapshot


def check_running_code() -> None:
    """Raises InputError if this process runs the code that a run keeps, and it has changed.

    Call it before importing anything else, since damaged code may not even be importable.
    """
    if ROOT.name == "code" and RunPaths(ROOT.parent).manifest.is_file():
        check_snapshot(RunPaths(ROOT.parent))


def origin_for(paths: RunPaths, *, live: bool) -> CodeOrigin:
    """Where the code comes from that runs a cell of this run here.

    Raises InputError if the run keeps its code, and this process runs other code without `live`.
    """
    runs_copy = paths.code.resolve() == ROOT
    if live and not runs_copy:
        return CodeOrigin()
    # A process that runs the copy has checked its files before it imported them.
    snapshot = read_snapshot(paths)
    if snapshot is None:
        return CodeOrigin()
    if not runs_copy:
        raise InputError(
            paths.root,
            "code",
            f"{ROOT}, but the run keeps a copy",
            f"--live, or PYTHONSAFEPATH=1 PYTHONPATH={paths.code}, as its scripts have it",
        )
    return CodeOrigin("snapshot", snapshot.commit)

"""Copies our packages into a run folder, for its jobs to run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import digest_of_sources, git_commit
from gnnhpc.core.python_path import ROOT
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.code_snapshot import PACKAGES, REPORTING, CodeSnapshot, file_digests


def keep_code(paths: RunPaths, *, reporting: bool = False) -> CodeSnapshot:
    """Copy the packages that this process runs into `code/`, and record what was copied.

    They come from a checkout, with all edits, or from where they are installed; `reporting` also
    copies what writes reports. Raises InputError if a file cannot be copied, or changes meanwhile.
    """
    packages = (*PACKAGES, REPORTING) if reporting else PACKAGES
    try:
        files = file_digests(ROOT, packages)
        for name in files:
            copy = paths.code / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
        if file_digests(paths.code, packages) != files:
            found = "sources that changed while they were copied"
            raise InputError(ROOT, None, found, "sources that nobody edits meanwhile")
    except OSError as error:
        found = f"code that the run cannot keep ({error.strerror}: {error.filename})"
        allowed = "files that may be read and room for a copy, or --live"
        raise InputError(ROOT, None, found, allowed) from None
    digest = digest_of_sources(paths.code / "gnnhpc")
    snapshot = CodeSnapshot(digest, git_commit(), str(ROOT), files)
    snapshot.write(paths.code_record)
    return snapshot


def check_importable_from(run: Path) -> None:
    """Raises InputError for a run folder whose path PYTHONPATH cannot hold."""
    if os.pathsep in str(run.absolute()):
        raise InputError(run, None, f"a path with {os.pathsep}", "one without, or --live")

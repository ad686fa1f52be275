"""Copies our packages into a run folder, for its jobs to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.python_path import ROOT, search_path_for_children
from gnnhpc.records.code_snapshot import PACKAGES, REPORTING, CodeSnapshot, file_digests
from gnnhpc.records.provenance import code_digest, digest_of_sources, git_commit
from gnnhpc.records.run_paths import RunPaths

_READ_LINES = """
import sys
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell
try:
    for line in sys.stdin:
        Cell.from_line(line, "cell")
except InputError as error:
    sys.exit(str(error))
"""


def keep_code(paths: RunPaths, *, reporting: bool = False) -> CodeSnapshot:
    """Copy the packages that this process runs into `code/`, and record what was copied.

    From a checkout, with all edits, or from where they are installed; `reporting` copies what
    writes reports too. Raises InputError if a file cannot be copied, or changes meanwhile.
    """
    try:
        packages = (*PACKAGES, REPORTING) if reporting else PACKAGES
        files = file_digests(ROOT, packages)
        for name in files:
            copy = paths.code / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
        if file_digests(paths.code, packages) != files:
            raise InputError(ROOT, None, "sources that changed while they were copied", "at rest")
    except OSError as error:
        found = f"code that the run cannot keep ({error.strerror}: {error.filename})"
        allowed = "files that may be read and room for a copy, or --live"
        raise InputError(ROOT, None, found, allowed) from None
    snapshot = CodeSnapshot(
        digest_of_sources(paths.code / "gnnhpc"), git_commit(), str(ROOT), files
    )
    snapshot.write(paths.code_record)
    return snapshot


def check_importable_from(run: Path) -> None:
    """Raises InputError for a run folder whose path PYTHONPATH cannot hold."""
    if os.pathsep in str(run.absolute()):
        raise InputError(run, None, f"a path with {os.pathsep}", "one without, or --live")


def check_lines_are_readable(paths: RunPaths, snapshot: CodeSnapshot, lines: Sequence[str]) -> None:
    """Raises InputError if the code that a run keeps does not understand these new cells.

    Then no cell of the run could be run again: a manifest is read whole.
    """
    if snapshot.code == code_digest():
        return
    done = subprocess.run(
        [sys.executable, "-c", _READ_LINES],
        input="\n".join(lines),
        env=os.environ | search_path_for_children(paths.code),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            paths.root, None, f"cells that its own code does not read ({why})", "another --name"
        )

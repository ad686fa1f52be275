"""A process whose flock the file system refuses: a library that comes before the C library's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
/* As a file system answers that is mounted without locks. */
#include <errno.h>
int flock(int descriptor, int operation) {
    (void)descriptor; (void)operation;
    errno = %s;
    return -1;
}
"""


def without_flock(folder: Path, error: str = "ENOLCK") -> dict[str, str]:
    """Variables under which a process's flock ends with this error; skips without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler, for a flock that is refused")
    source, library = folder / f"{error}.c", folder / f"{error}.so"
    source.write_text(_SOURCE % error)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    before = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": f"{library}:{before}" if before else str(library)}

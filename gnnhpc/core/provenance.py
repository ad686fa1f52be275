"""Where a measurement comes from: code, commit, versions, machine, user, command."""

from __future__ import annotations

import functools
import getpass
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gnnhpc.core import VERSION
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import check_version, read_object

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages of this process."""
PACKAGES = ("torch", "torch-geometric", "torchgpipe", "numpy", "pymetis")
SOURCES = (".py", ".cpp", ".h", ".toml")
_RUN_FOLDER_FILE = "manifest.jsonl"
PROVENANCE_VERSION = 1


def is_installed(root: Path = ROOT) -> bool:
    """Whether `root` is site-packages, which the interpreter searches anyway; a checkout is not."""
    return root.name in ("site-packages", "dist-packages")


def search_path_for_children(root: Path = ROOT) -> dict[str, str]:
    """Environment with which `python -m` finds the packages in `root`, as a rule this process's."""
    path = [] if is_installed(root) else [str(root)]
    if known := os.environ.get("PYTHONPATH"):
        path.append(known)
    found = {"PYTHONPATH": os.pathsep.join(path)}
    if root != ROOT or sys.path[0] not in ("", os.getcwd()):  # noqa: PTH109 - as sys.path has it
        # `python -m` would search the current folder first, which this process does not.
        found["PYTHONSAFEPATH"] = "1"
    return found


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on, without packages that are not installed."""
    # The running code's version, since another one may be installed.
    found = {"python": platform.python_version(), "gnnhpc": VERSION}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def git_commit() -> str | None:
    """The commit of this code, `+dirty` if files differ from it; none outside a checkout."""
    try:
        top, commit = _git(ROOT, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top) != ROOT:
            # The environment lies inside a checkout of something else.
            return None
        dirty = _git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", "gnnhpc", "jobs")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+dirty" if dirty else "")


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


@functools.cache
def code_digest() -> str:
    """A hash of the sources of gnnhpc: ranks of one cell must have the same."""
    return digest_of_sources(ROOT / "gnnhpc")


def digest_of_sources(package: Path) -> str:
    """A hash of the names and contents of a package's sources: Python, kernels, tables."""
    digest = hashlib.sha256()
    for path in files_below(package):
        if path.suffix in SOURCES:
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def command_line() -> list[str]:
    """The command of this process, as a user can type it again."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["python", "-m", program.parent.name, *sys.argv[1:]]
    return [program.name, *sys.argv[1:]]


def seconds_since_process_start() -> float:
    """Age of this process, from field 22 of /proc/self/stat (proc(5))."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks = int(fields[19])
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return time.process_time()
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    return {
        "cpu_model": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
    }


def files_below(folder: Path) -> list[Path]:
    """All files of the folder and the folders in it, in a fixed order.

    Left out are hidden files and folders, `__pycache__`, links to folders, and run folders inside.
    """
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not (name.startswith(".") or name == "__pycache__")
            and not Path(place, name, _RUN_FOLDER_FILE).exists()
        ]
        found += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def read_provenance(run: RunPaths) -> dict[str, Any] | None:
    """What a run was submitted with, None without the file; InputError for anything else."""
    try:
        metadata = read_object(run.provenance, "what the run was submitted with, as written")
    except FileNotFoundError:
        return None
    check_version(metadata, PROVENANCE_VERSION, run.provenance)
    return metadata

"""Where a measurement comes from: code, versions, machine. Free of torch."""

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

PACKAGES = ("torch", "torch-geometric", "torchgpipe", "submitit", "numpy", "pymetis", "gnnhpc")


def versions() -> dict[str, str]:
    """Installed versions of what the numbers depend on; a package that is absent is left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def git_commit() -> str | None:
    """The commit of this code, `+dirty` if files differ from it; none outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    try:
        top, commit = _git(root, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(top) != root:
            # Installed into an environment that lies inside somebody's own checkout.
            return None
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "gnnhpc", "jobs")
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
    """A hash of the sources that compute: ranks that differ in it do not measure one thing."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("py", "cpp", "h") for path in root.rglob(f"*.{kind}")):
        digest.update(path.relative_to(root).as_posix().encode())
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
    """What was typed, near enough to type it again."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return ["python", "-m", program.parent.name, *sys.argv[1:]]
    return [program.name, *sys.argv[1:]]


def seconds_since_process_start() -> float:
    """How long this process has lived; field 22 of /proc/self/stat (proc(5))."""
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

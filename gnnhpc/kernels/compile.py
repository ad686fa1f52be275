"""Compiles `cpp/<name>.cpp` once for each kind of machine, and loads it.

A kernel is one C++ file, whose functions have names by `EXPORT` or `extern "C"`, and the headers
below its folder. The machine's compiler builds it into a per-user cache. The name of the built file
has a hash of all that the machine code depends on, so that kernels for several processors lie side
by side. Without a compiler the caller gets None, and a reason for the run's record.

Import torch before loading a kernel: both then use torch's pool of OpenMP threads. Two pools would
compete for the processors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
COMPILE_TIMEOUT_S = 120.0
ARCHITECTURE_VARIABLE = "GNNHPC_KERNEL_ARCH"
SOURCES = Path(__file__).with_name("cpp")

_compiling: list[str] = []
_status: dict[str, str] = {}


class KernelError(Exception):
    """Why a kernel cannot be compiled or loaded; handled in this module."""


def kernel_status(name: str) -> str:
    """How kernel `name` was loaded, or why it was not: one line for the record of a run."""
    return _status.get(name, "not requested")


def kernel_statuses() -> dict[str, str]:
    """`kernel_status` of every kernel that this process has requested."""
    return dict(sorted(_status.items()))


def is_compiling() -> bool:
    """Whether this process compiles a kernel, or waits for another process that does."""
    return bool(_compiling)


@functools.cache
def load_kernel(name: str) -> ctypes.CDLL | None:
    """The compiled kernel, or None if it cannot be compiled or loaded (`kernel_status` says why).

    The first use on a machine compiles for a few seconds; later uses load from the cache
    ($GNNHPC_KERNEL_CACHE, else $XDG_CACHE_HOME/gnnhpc, else ~/.cache/gnnhpc). Ranks that start
    together compile once. $CXX names the compiler, $GNNHPC_KERNEL_ARCH another `-march=` than
    `native`; GNNHPC_KERNELS=off leaves everything to torch.
    """
    _compiling.append(name)
    try:
        library, _status[name] = _load(name)
    except KernelError as error:
        _status[name] = f"none: {error}"
        return None
    except OSError as error:
        _status[name] = f"none: {cache_folder()} cannot be used ({error.strerror or error})"
        return None
    finally:
        _compiling.remove(name)
    return library


def _load(name: str) -> tuple[ctypes.CDLL, str]:
    """The library, and the compiler that built it."""
    if os.environ.get("GNNHPC_KERNELS", "").lower() == "off":
        raise KernelError("switched off by GNNHPC_KERNELS=off")
    source, compiler = SOURCES / f"{name}.cpp", find_compiler()
    version, flags = compiler_version(compiler), list(FLAGS)
    status, architecture = version, os.environ.get(ARCHITECTURE_VARIABLE) or "native"
    flags.append(f"-march={architecture}")
    if architecture != "native":
        status += f" -march={architecture}"
    with contextlib.ExitStack() as kept:
        # Where there is no cache, a folder that is gone once the kernel is loaded.
        folder = cache_folder() or Path(kept.enter_context(tempfile.TemporaryDirectory()))
        path = folder / f"{name}-{cache_key(source, version, flags)}.so"
        # Without locks that work, each rank compiles and renames.
        lock = FileLock(f"{path}.lock", timeout=COMPILE_TIMEOUT_S)
        with contextlib.suppress(Timeout, OSError, NotImplementedError):
            if not path.exists():
                lock.acquire()
        try:
            if not path.exists():
                _compile([compiler, *flags], source, path)
        finally:
            lock.release()
        return _open(path), status


def find_compiler() -> str:
    """Path of $CXX, or of the first C++ compiler on PATH. Raises KernelError if there is none."""
    requested = os.environ.get("CXX")
    for candidate in (requested,) if requested else COMPILERS:
        if found := shutil.which(candidate):
            return found
    raise KernelError(f"no C++ compiler found ({requested or ', '.join(COMPILERS)})")


def compiler_version(compiler: str) -> str:
    """First line of `compiler --version`. Raises KernelError if it does not run."""
    return _run([compiler, "--version"]).partition("\n")[0]


def cache_key(source: Path, version: str, flags: Sequence[str]) -> str:
    """Hash of all that the machine code may depend on: every header is part of it."""
    machine = [platform.machine()]
    with contextlib.suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        machine += re.findall(r"^(?:model name|flags|Features)\s*:.*", first, re.MULTILINE)
    headers = sorted(source.parent.rglob("*.h"))
    texts = [path.read_bytes() for path in (source, *headers)]
    digest = hashlib.sha256()
    for part in (*texts, *(text.encode() for text in (version, *flags, *machine))):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:20]


def cache_folder() -> Path | None:
    """The per-user cache, made if missing; None unless only this user can write to it.

    Code is loaded from here, so a folder that others can write to is refused.
    """
    path = Path(os.environ.get("GNNHPC_KERNEL_CACHE") or platformdirs.user_cache_path("gnnhpc"))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return path if private and os.access(path, os.W_OK) else None


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Build beside `path`, then rename, so that no rank ever loads half a file."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")
    try:
        _run([*command, str(source), "-o", str(temporary)])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        # In a session of its own: Ctrl-C, which ends a rank with a checkpoint, must not end it.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_TIMEOUT_S,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{command[0]} did not run ({error})") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "")
        raise KernelError(f"{command[0]} ended with {done.returncode}: {first.strip()}")
    return done.stdout


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"{path.name} does not load ({error})") from None

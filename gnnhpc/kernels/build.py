"""Compiles `gnnhpc/kernels/<name>.cpp` once for a kind of machine, and loads it.

A kernel is one C++ file with `extern "C"` functions, and the headers beside it that it includes.
It is built by the machine's compiler into a per-user cache; the key covers all that the machine
code depends on, so that kernels for several instruction sets (`gnnhpc.kernels.architecture`) lie
side by side. Without a compiler the caller gets None, and a reason for the run's record.

Import torch before loading a kernel that uses OpenMP: both then use torch's thread pool; two
pools would compete for the processors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gnnhpc.kernels.architecture import NATIVE, cpu_model, lacking, wanted_architecture

COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
# The first set that compiles is taken: without OpenMP a kernel still runs, on one thread.
OPENMP_FLAGS = (("-fopenmp",), ("-fopenmp-simd",), ())
COMPILE_TIMEOUT_S = 120.0
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

_BUILT_HERE = ", built for this process alone"
_under_way: list[str] = []
_status: dict[str, str] = {}
_traits: dict[str, str] = {}


class KernelError(Exception):
    """Why a kernel cannot be compiled or loaded; handled in this module."""


def kernel_status(name: str) -> str:
    """How kernel `name` was loaded, or why it was not: one line for the record of a run."""
    return _status.get(name, "not asked for")


def kernel_statuses() -> dict[str, str]:
    """`kernel_status` of every kernel that this process has asked for, without where it lies."""
    return {name: line.removesuffix(_BUILT_HERE) for name, line in sorted(_status.items())}


def kernel_traits(name: str) -> str:
    """What sets a loaded kernel apart from the usual one, for the note on the code that ran.

    Empty for one that was built for this processor and runs on several threads.
    """
    return _traits.get(name, "")


def is_under_way() -> bool:
    """Whether this process compiles a kernel, or waits for another process that does."""
    return bool(_under_way)


@functools.cache
def load_kernel(name: str) -> ctypes.CDLL | None:
    """The compiled kernel, or None if it cannot be compiled or loaded (`kernel_status` says why).

    Compiles on first use on a machine, a few seconds; later uses load from the cache
    ($GNNHPC_KERNEL_CACHE, else $XDG_CACHE_HOME/gnnhpc, else ~/.cache/gnnhpc). Ranks that start
    together compile once. `load_kernel.cache_clear()` forgets this process's answers.
    $GNNHPC_KERNEL_ARCH names another instruction set than this processor's, $CXX the compiler;
    GNNHPC_KERNELS=off leaves all to torch.
    """
    _under_way.append(name)
    try:
        library, version, where = _load(name)
    except KernelError as error:
        _status[name] = f"none: {error}"
        return None
    except OSError as error:
        _status[name] = f"none: {cache_folder()} cannot be used ({error.strerror or error})"
        return None
    finally:
        _under_way.remove(name)
    _traits[name] = _describe(library)
    _status[name] = version + _traits[name] + where
    return library


def _describe(library: ctypes.CDLL) -> str:
    """A trait a word or two, each after a space."""
    architecture = wanted_architecture()
    described = "" if architecture == NATIVE else f" -march={architecture}"
    threaded = getattr(library, "has_threads", None)
    return described if threaded is None or threaded() else f"{described} without OpenMP"


def _load(name: str) -> tuple[ctypes.CDLL, str, str]:
    """The library, the compiler that built it, and where if not in the cache."""
    if os.environ.get("GNNHPC_KERNELS", "").lower() == "off":
        raise KernelError("switched off by GNNHPC_KERNELS=off")
    architecture = wanted_architecture()
    if missing := lacking(architecture):
        raise KernelError(f"{architecture} needs {', '.join(missing)}, which this processor lacks")
    source = Path(__file__).with_name(f"{name}.cpp")
    compiler = find_compiler()
    version = compiler_version(compiler)
    flags = (*FLAGS, f"-march={architecture}")
    file_name = f"{name}-{cache_key(source, version, flags)}.so"
    cache = cache_folder()
    if cache is None:
        # No cache folder can be used: build for this process alone.
        with tempfile.TemporaryDirectory(prefix="gnnhpc-") as folder:
            path = Path(folder) / file_name
            _compile([compiler, *flags], source, path)
            return _open(path), version, _BUILT_HERE
    path = cache / file_name
    if not path.exists():
        with _lock(cache / f"{file_name}.lock"):
            if not path.exists():
                _compile([compiler, *flags], source, path)
    return _open(path), version, ""


def find_compiler() -> str:
    """Path of $CXX, or of the first C++ compiler on PATH. Raises KernelError if there is none."""
    wanted = os.environ.get("CXX")
    for candidate in (wanted,) if wanted else COMPILERS:
        if found := shutil.which(candidate):
            return found
    raise KernelError(f"no C++ compiler found ({wanted or ', '.join(COMPILERS)})")


def compiler_version(compiler: str) -> str:
    """First line of `compiler --version`. Raises KernelError if it does not run."""
    return _run([compiler, "--version"]).partition("\n")[0]


def cache_key(source: Path, version: str, flags: Sequence[str]) -> str:
    """Hash of all that the machine code depends on. Raises KernelError if a source is missing."""
    texts = [path.read_bytes() for path in with_headers(source)]
    digest = hashlib.sha256()
    for part in (*texts, *(text.encode() for text in (version, " ".join(flags), cpu_model()))):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:20]


def with_headers(source: Path) -> list[Path]:
    """A source and the headers beside it that it includes, theirs too.

    Raises KernelError if one of them is missing.
    """
    found = [source]
    for path in found:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise KernelError(f"{path.name} cannot be read ({error.strerror})") from None
        for name in _INCLUDED.findall(text):
            if (header := path.with_name(name)) not in found:
                found.append(header)
    return found


def cache_folder() -> Path | None:
    """The per-user cache, made if missing; None unless only this user can write to it.

    Code is loaded from here, so a folder that others can write to is refused.
    """
    if folder := os.environ.get("GNNHPC_KERNEL_CACHE"):
        path = Path(folder)
    elif folder := os.environ.get("XDG_CACHE_HOME"):
        path = Path(folder) / "gnnhpc"
    else:
        path = Path("~/.cache/gnnhpc").expanduser()
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
        for attempt, openmp in enumerate(OPENMP_FLAGS, start=1):
            try:
                _run([*command, *openmp, str(source), "-o", str(temporary)])
                break
            except KernelError:
                if attempt == len(OPENMP_FLAGS):
                    raise
        temporary.replace(path)
    except OSError as error:
        raise KernelError(f"{path} cannot be written ({error.strerror})") from None
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


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one of the ranks of a host compile; without working locks each does, and renames."""
    deadline = time.monotonic() + COMPILE_TIMEOUT_S
    with path.open("w", encoding="utf-8") as stream:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break
        yield

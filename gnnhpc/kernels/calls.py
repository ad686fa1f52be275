"""Counts which code computes: compiled libraries by their files, forms in torch and in Triton."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TORCH, TRITON = "torch", "triton"
_calls: Counter[tuple[str, str]] = Counter()
_counting = threading.Lock()
"""Stages on several GPUs compute in a thread each."""
_paused: list[None] = []
"""One for each `uncounted` that is open."""


def count(code: str, function: str, times: int = 1) -> None:
    """Calls of `function` in a library's file, or in TORCH or TRITON."""
    if not _paused:
        with _counting:
            _calls[code, function] += times


def count_compiled(library: ctypes.CDLL, function: str, times: int = 1) -> None:
    """Calls of a library's `function`."""
    count(library._name, function, times)


def counted() -> Counter[tuple[str, str]]:
    """Calls since the start, by code (a file's name without its suffix) and function."""
    return Counter({(Path(code).stem, name): calls for (code, name), calls in _calls.items()})


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """What is computed to check something, and is no part of what is checked."""
    _paused.append(None)
    try:
        yield
    finally:
        _paused.pop()

"""Imports a user's model from its source, whatever else Python's path has of that name."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from gnnhpc.core.errors import InputError
from gnnhpc.models.own_source import (
    ALLOWED,
    check_no_imports_beside,
    import_beside_error,
    modules_beside,
    source_digest,
)


def import_source(name: str, source: Path, where: str) -> ModuleType:
    """The module of this name in the file or package `source`, read again where it has changed.

    Raises InputError for a source that cannot be imported, that has the name of another module, or
    that imports files beside itself.
    """
    top = name.partition(".")[0]
    known, digest = sys.modules.get(top), source_digest(source)
    if known is not None and top in _loaded_digests:
        # Two folders may have the same sources, and a notebook may plan a file, edit it, and plan
        # it again.
        if _loaded_digests[top] != digest:
            _forget(_names_of(top))
            known = None
    elif known is not None and _origin(known) != source:
        found = f"{source}, but {top} is {_origin(known)} already"
        raise InputError(where, None, found, "another file name")
    if known is None or top not in _loaded_digests:
        check_no_imports_beside(source, where)
    had_torch, began, before = "torch" in sys.modules, time.perf_counter(), set(sys.modules)
    try:
        with _no_bytecode():
            if known is None:
                _load_top(top, source)
                _loaded_digests[top] = digest
            module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        found = f"{source} cannot be imported ({error_text(error)})"
        raise InputError(where, None, found, ALLOWED) from error
    added = set(sys.modules) - before
    if beside := modules_beside(added, source):
        _forget(added & {name for other in (top, *beside) for name in _names_of(other)})
        raise import_beside_error(source, next(iter(beside.values())), where)
    if not had_torch and "torch" in sys.modules:
        _torch_s[name] = time.perf_counter() - began
    return module


def torch_import_s(name: str) -> float | None:
    """Seconds that importing `module:Class` took, if it imported torch; else None."""
    return _torch_s.get(name.partition(":")[0])


def error_text(error: BaseException) -> str:
    """A user's error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


_torch_s: dict[str, float] = {}
_loaded_digests: dict[str, str] = {}
"""Digests of the users' modules that were imported here, by name."""


def _load_top(top: str, source: Path) -> None:
    """Import this file or package, even if Python's path has another module of its name."""
    spec = PathFinder.find_spec(top, [str(source.parent)])
    assert spec is not None
    assert spec.loader is not None
    before = set(sys.modules)
    module = importlib.util.module_from_spec(spec)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(_names_of(top) - before)
        raise


def _names_of(top: str) -> set[str]:
    """Names in sys.modules of a module and what is inside it."""
    return {name for name in sys.modules if name == top or name.startswith(f"{top}.")}


def _forget(names: set[str]) -> None:
    for name in names:
        del sys.modules[name]


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    """Python takes a file's bytecode for that of its edit in the same second, of the same size."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _origin(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return path.parent if hasattr(module, "__path__") else path

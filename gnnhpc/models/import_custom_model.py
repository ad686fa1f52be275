"""The source of a custom model: where it is found, its files and digest, and importing it.

A source is one file, or the folder of a package. A run keeps exactly the files listed here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import files_below

ALLOWED = "a gnnhpc.Model in a file beside the spec or on PYTHONPATH, as module:Class"
_IMPORTED = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
_imported_digests: dict[str, str] = {}
"""Digests of the custom models that this process has imported, by the name of their module."""


def source_of(name: str, folders: Sequence[Path]) -> Path:
    """The file, or the folder of the package, that `module:Class` is found in.

    `folders` come before Python's own path. Raises InputError where there is none.
    """
    top = name.partition(":")[0].partition(".")[0]
    # Files may have been added since Python last listed their folder.
    importlib.invalidate_caches()
    for folder in (*map(str, folders), *sys.path):
        found = PathFinder.find_spec(top, [folder or "."])
        if found is None or found.origin is None or not found.has_location:
            continue
        origin = Path(found.origin).absolute()
        return origin.parent if found.submodule_search_locations else origin
    searched = ", ".join(str(folder) for folder in folders)
    raise InputError(
        f"model {name}", None, f"no module {top} in {searched} or on PYTHONPATH", ALLOWED
    )


def source_files(source: Path) -> list[Path]:
    """The one file, or all files of the package, in a fixed order.

    Hidden files and folders, `__pycache__`, and run folders inside the package are left out.
    """
    return files_below(source) if source.is_dir() else [source]


def source_digest(source: Path) -> str:
    """A digest of the names and contents of the source's files.

    Raises InputError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in source_files(source):
            digest.update(path.relative_to(source.parent).as_posix().encode())
            digest.update(path.read_bytes())
    except OSError as error:
        where = error.filename or source
        raise InputError(where, None, f"unreadable ({error.strerror})", ALLOWED) from None
    return digest.hexdigest()[:16]


def import_source(name: str, source: Path, where: str) -> ModuleType:
    """The module `name` of the file or package `source`, imported again where that has changed.

    Raises InputError for a source that cannot be imported, that has the name of another module, or
    that imports files beside itself.
    """
    top, files = name.partition(".")[0], source_files(source)
    known, digest = sys.modules.get(top), source_digest(source)
    if known is not None and top not in _imported_digests:
        origin = getattr(known, "__file__", None)
        if origin is None or Path(origin).absolute() not in files:
            found = f"{source}, but {top} is {origin or 'a module of Python'} already"
            raise InputError(where, None, found, "another file name")
    if _imported_digests.get(top) != digest:
        check_no_imports_beside(source, files, where)
        # Two folders may have files of one name, and a notebook may edit a file and plan it again.
        if top in _imported_digests:
            _forget(top)
    try:
        if top not in sys.modules:
            _import_top(top, source)
            _imported_digests[top] = digest
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        found = f"{source} cannot be imported ({error_text(error)})"
        raise InputError(where, None, found, ALLOWED) from error


def error_text(error: BaseException) -> str:
    """An error of a user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check_no_imports_beside(source: Path, files: Sequence[Path], where: str) -> None:
    """Raise InputError if a file of the source imports another one of the folder that it lies in.

    Such a file is neither in the digest nor in the run folder. Imports inside functions count.
    Packages that are installed may import each other.
    """
    folder = source.parent
    if folder.name in ("site-packages", "dist-packages"):
        return
    own = {source.stem, "gnnhpc", *sys.stdlib_module_names}
    for path in (path for path in files if path.suffix == ".py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in sorted(set(_IMPORTED.findall(text)) - own):
            beside = folder / f"{name}.py"
            if beside.exists() or (folder / name / "__init__.py").exists():
                found = f"{path} that imports {beside.name if beside.exists() else name} beside it"
                allowed = (
                    "one file, or a package (a folder with __init__.py) that holds both, as "
                    "package.module:Class"
                )
                raise InputError(where, None, found, allowed)


def _import_top(top: str, source: Path) -> None:
    """Import this file or package, even if Python's path has another module of its name."""
    spec = PathFinder.find_spec(top, [str(source.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(top)
        raise


def _forget(top: str) -> None:
    """Remove a module and those inside it from the imported ones."""
    _imported_digests.pop(top, None)
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]

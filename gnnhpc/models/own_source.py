"""The sources of a user's model: where they are found, which files they are, their digest.

A source is one file, or the folder of a package; a run keeps exactly the files listed here.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.source_files import files_below

ALLOWED = "a gnnhpc.Model in a file beside the spec or on PYTHONPATH, as module:Class"


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
    looked = ", ".join(str(folder) for folder in folders)
    raise InputError(
        f"model {name}", None, f"no module {top} in {looked} or on PYTHONPATH", ALLOWED
    )


def source_files(source: Path) -> list[Path]:
    """The one file, or all files of the package, in a fixed order.

    Left out are hidden files and folders, `__pycache__`, and run folders inside the package.
    Raises InputError for a folder that cannot be listed.
    """
    if not source.is_dir():
        return [source]
    try:
        return files_below(source)
    except OSError as error:
        raise _unreadable(source, error) from None


def source_digest(source: Path) -> str:
    """A digest of the names and contents of the source's files.

    Raises InputError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in source_files(source):
        digest.update(path.relative_to(source.parent).as_posix().encode())
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise _unreadable(path, error) from None
    return digest.hexdigest()[:16]


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(path, None, f"unreadable ({error.strerror})", ALLOWED)


def check_no_imports_beside(source: Path, where: str) -> None:
    """Raises InputError if the source imports another file of the folder that it lies in.

    Such a file is neither in the digest nor in the run folder. Imports inside functions count,
    those for type checkers do not. Packages that are installed may import each other.
    """
    if _is_installed(source):
        return
    for path in source_files(source):
        if path.suffix != ".py":
            continue
        for top in dict.fromkeys(_imported_names(path)):
            if (beside := _place_beside(top, source)) is not None:
                raise import_beside_error(path, beside, where)


def import_beside_error(path: Path, beside: str, where: str) -> InputError:
    """The error for a file that imports what lies beside the source."""
    return InputError(
        where,
        None,
        f"{path} that imports {beside} beside it",
        "one file, or a package (a folder with __init__.py) that holds both, as "
        "package.module:Class",
    )


def modules_beside(names: set[str], source: Path) -> dict[str, str]:
    """Of these loaded modules those that lie beside the source: name -> file or folder."""
    if _is_installed(source):
        return {}
    tops = sorted({name.partition(".")[0] for name in names})
    return {top: beside for top in tops if (beside := _place_beside(top, source)) is not None}


def _is_installed(source: Path) -> bool:
    return source.parent.name in ("site-packages", "dist-packages")


def _imported_names(path: Path) -> Iterator[str]:
    """First parts of the names that a file imports; none where it is no valid Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def _place_beside(top: str, source: Path) -> str | None:
    """The file or folder beside the source that `import top` would take, or None."""
    own = source.name if source.is_dir() else source.stem
    if top in (own, "gnnhpc") or top in sys.stdlib_module_names:
        return None
    found: ModuleSpec | None = None
    with contextlib.suppress(ValueError):
        found = importlib.util.find_spec(top)
    found = found or PathFinder.find_spec(top, [str(source.parent)])
    if found is None:
        return None
    if found.submodule_search_locations:
        places = [Path(place) for place in found.submodule_search_locations]
    else:
        places = [Path(found.origin)] if found.has_location and found.origin else []
    folder = source.parent.resolve()
    beside = [place.name for place in places if place.parent.resolve() == folder]
    return beside[0] if beside else None

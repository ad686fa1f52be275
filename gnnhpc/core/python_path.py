"""Checks that this interpreter finds gnnhpc, jobs and analysis in one folder.

A file named `analysis.py` in the current folder, or another checkout on PYTHONPATH, would be
imported in place of ours. jobs and analysis run this file by its path, before they import
anything of gnnhpc, so it uses the standard library alone.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("gnnhpc", "jobs", "analysis")
ROOT = Path(__file__).resolve().parents[2]
EXIT_INPUT = 2


def exit_if_mixed() -> None:
    """End the process with one line and status 2 if an import would find another package.

    Nothing is imported to find out. A package that is not found at all is not refused.
    """
    for name in PACKAGES:
        place = found_at(name)
        # The code that a run keeps is without analysis, which no job imports.
        needed = name != "analysis" or (ROOT / name).is_dir()
        if place not in (None, ROOT / name) and needed:
            print(
                f"error: python path: found {name} in {place}; allowed: the one in {ROOT}, as from "
                "another folder or without PYTHONPATH",
                file=sys.stderr,
            )
            raise SystemExit(EXIT_INPUT)


def found_at(name: str) -> Path | None:
    """The folder of the package that `import name` would take, or the file of a module."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.origin is None:
        # A folder without __init__.py, which Python takes if it finds no module of this name.
        return Path(next(iter(spec.submodule_search_locations or ()), name)).resolve()
    file = Path(spec.origin).resolve()
    return file.parent if file.name == "__init__.py" else file


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

"""Where this gnnhpc is, and how child processes find the same one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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

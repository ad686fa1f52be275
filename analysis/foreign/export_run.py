"""`export`: a run's numbers for programs that people look at other trainings with."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from analysis.foreign.exported_cells import ExportedCell, exported_cells
from analysis.loading.run import load
from gnnhpc.core.errors import InputError

TARGETS = ("tensorboard", "mlflow")
"""What is exported to: the package's name, that of our extra, and of the folder."""


def export_run(root: Path, to: str, out: Path | None = None) -> tuple[int, int, Path]:
    """Write the valid cells of a run for another program; how many, of how many, and where.

    `out` is RUN/export/<to> unless given. Raises InputError for another program, one whose package
    is not installed, a run without a valid cell, and a folder that cannot take it.
    """
    if to not in TARGETS:
        raise InputError("--to", None, repr(to), " or ".join(TARGETS))
    if find_spec(to) is None:
        raise _not_installed(to, "whose package")
    run = load(root)
    cells = exported_cells(run)
    if not cells:
        raise InputError(root, None, "no valid cell", "a run with one")
    folder = root / "export" / to if out is None else out
    try:
        _write(cells, run.name, to, folder)
    except ImportError as error:
        # Such as mlflow-skinny, which is without what a store needs.
        raise _not_installed(to, f"whose {error.name or error}") from None
    return len(cells), len(run.cells), folder


def _write(cells: list[ExportedCell], name: str, to: str, out: Path) -> None:
    if to == "mlflow":
        from analysis.foreign.mlflow_store import write_mlflow

        write_mlflow(cells, name, out)
    else:
        from analysis.foreign.tensorboard_files import write_tensorboard

        write_tensorboard(cells, out)


def _not_installed(to: str, what: str) -> InputError:
    found = f"{to}, {what} is not installed here"
    return InputError("--to", None, found, f"pip install 'gnnhpc[{to}]', or '.[{to}]'")

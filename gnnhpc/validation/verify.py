"""The command `gnnhpc verify`: an engine parity check with more steps and a larger slice.

It starts the ranks of a cell, or runs as one of them, and prints the verdict.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, report_errors
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import data_root
from gnnhpc.distributed.environment import Environment, local_rank_variables, read_environment
from gnnhpc.experiment.command_line_flags import read_cell
from gnnhpc.experiment.copy_custom_models import copy_models, load_model
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, read_manifest

if TYPE_CHECKING:
    from gnnhpc.records.schema import Check

_VERDICTS = {"ok": "PASSED", "invalid": "FAILED", "inconclusive": "INCONCLUSIVE"}


def verify_manifest(path: Path, steps: int) -> int:
    """Verify every cell of a sweep, but one of those that differ in repeat or length alone."""
    cells: dict[str, Cell] = {}
    for cell in read_manifest(path):
        same = cell.experiment.model_copy(update={"repeat": 0, "train_steps": 1})
        cells.setdefault(same.id, cell)
    for cell in cells.values():
        load_model(cell.experiment, RunPaths(path.resolve().parent))
    return verify_cells(cells.values(), steps)


def verify_cells(cells: Collection[Cell], steps: int) -> int:
    """Verify one cell after another; the exit status is the worst of them."""
    for cell in cells:
        cell.experiment.model.check_here()
    status = EXIT_DONE
    for cell in cells:
        environment = read_environment()
        if environment.world_size == cell.experiment.process_layout.world_size:
            status = max(status, _verify_as_rank(cell, environment, steps))
        else:
            status = max(status, _start_ranks(cell, steps))
    return status


def _verify_as_rank(cell: Cell, environment: Environment, steps: int) -> int:
    """Verify as one rank of the layout; rank 0 prints what it found.

    Raises InputError for an experiment that cannot be run here.
    """
    import torch

    from gnnhpc.distributed.devices import choose_devices
    from gnnhpc.distributed.rendezvous import join, leave
    from gnnhpc.training.setup import set_up
    from gnnhpc.validation.engine_parity import check_engine
    from gnnhpc.validation.steps.parity_slice import parity_slice

    experiment, root = cell.experiment, data_root(cell.data_root)
    torch.set_num_threads(environment.cpus)
    device, *more = choose_devices(experiment.device, environment, experiment.stages_per_process)
    layout = experiment.process_layout
    mesh = join(environment, layout, device, more, experiment.loss_stage)
    parts = set_up(experiment, mesh, root)
    part = parity_slice(experiment, steps=steps, larger=True)
    checks = check_engine(experiment, parts, mesh, root, part)
    leave(mesh)
    for check in checks:
        _print(experiment, check)
    return EXIT_DONE if all(check.verdict == "ok" for check in checks) else EXIT_FAILED


def _print(experiment: Experiment, check: Check) -> None:
    """A line a layer, the largest difference of each kind, the verdict."""
    from gnnhpc.validation.steps.compare_with_reference import TOLERANCE

    console = Console()
    if check.values:
        table = Table(title=f"{experiment.id} and one process", title_justify="left")
        table.add_column("layer")
        for column in ("outputs", "gradient"):
            table.add_column(f"{column}, relative difference", justify="right")
        for layer, found in check.values["layers"].items():
            each = (found.get("outputs"), found.get("gradient"))
            table.add_row(layer, *("" if value is None else f"{value:.1e}" for value in each))
        console.print(table)
        worst = ", ".join(f"{what} {value:.1e}" for what, value in check.values["worst"].items())
        console.print(f"largest relative differences: {worst}; tolerance {TOLERANCE:.0e}")
    console.print(f"{_VERDICTS[check.verdict]}: {check.detail}", soft_wrap=True, highlight=False)


def _start_ranks(cell: Cell, steps: int) -> int:
    """Start a process for each rank on this machine; the status of the first one that fails."""
    from torch import multiprocessing

    size = cell.experiment.process_layout.world_size
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="gnnhpc-verify-") as name:
        file = Path(name) / "cell.jsonl"
        file.write_text(cell.to_line() + "\n", encoding="utf-8")
        copy_models(RunPaths(Path(name)), [cell.experiment])
        try:
            multiprocessing.spawn(_run_rank, (size, port, file, steps), nprocs=size)
        except multiprocessing.ProcessExitedException as ended:
            return ended.exit_code
    return EXIT_DONE


def _run_rank(rank: int, size: int, port: int, file: Path, steps: int) -> None:
    environment = read_environment(local_rank_variables(rank, size, port))
    sys.exit(report_errors(_verify_as_rank)(read_cell(file, None), environment, steps))

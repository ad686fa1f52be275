"""The command `gnnhpc verify`: an engine parity check with more steps and a larger slice.

It starts the ranks of a cell, or runs as one of them, and prints the verdict.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import data_root
from gnnhpc.distributed.environment import Environment, local_rank_variables, read_environment
from gnnhpc.experiment.custom_model_files import copy_models, load_model
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, read_manifest

if TYPE_CHECKING:
    from gnnhpc.validation.engine_parity import Parity

TIMEOUT_S = 600.0
GRACE_S = 1.0
"""How long other ranks may go on after one has failed."""
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
    from gnnhpc.validation.engine_parity import compare_engine
    from gnnhpc.validation.steps.parity_slice import parity_slice

    experiment, root = cell.experiment, data_root(cell.data_root)
    torch.set_num_threads(environment.cpus)
    device, *more = choose_devices(experiment.device, environment, experiment.stages_per_process)
    layout = experiment.process_layout
    mesh = join(environment, layout, device, more, experiment.loss_stage)
    parts = set_up(experiment, mesh, root)
    part = parity_slice(experiment, steps=steps, larger=True)
    parity = compare_engine(experiment, parts, mesh, root, part)
    leave(mesh)
    if parity is None:
        return EXIT_DONE
    _print_parity(experiment, parity)
    return EXIT_DONE if parity.check.verdict == "ok" else EXIT_FAILED


def _print_parity(experiment: Experiment, parity: Parity) -> None:
    """A line a layer, the largest difference of each kind, the verdict."""
    from gnnhpc.validation.steps.step_comparison import TOLERANCE

    console = Console()
    table = Table(title=f"{experiment.id} and one process", title_justify="left")
    table.add_column("layer")
    for column in ("outputs", "gradient"):
        table.add_column(f"{column}, relative difference", justify="right")
    for spec in parity.part.layer_specs:
        found = (parity.outputs.get(spec.name), parity.gradients.get(spec.name))
        table.add_row(spec.name, *("" if each is None else f"{each:.1e}" for each in found))
    if parity.outputs:
        console.print(table)
        worst = ", ".join(f"{what} {value:.1e}" for what, value in parity.worst.items())
        console.print(f"largest relative differences: {worst}; tolerance {TOLERANCE:.0e}")
    check = parity.check
    console.print(f"{_VERDICTS[check.verdict]}: {check.detail}", soft_wrap=True, highlight=False)


def _start_ranks(cell: Cell, steps: int) -> int:
    """Start a `verify --cell` for each rank on this machine, and wait for all of them."""
    size = cell.experiment.process_layout.world_size
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="gnnhpc-verify-") as name, contextlib.ExitStack() as on:
        folder = Path(name)
        file = folder / "cell.jsonl"
        file.write_text(cell.to_line() + "\n", encoding="utf-8")
        copy_models(RunPaths(folder), [cell.experiment])
        command = [sys.executable, "-m", "gnnhpc", "verify", "--cell", str(file)]
        command += ["--steps", str(steps)]
        ranks = {}
        for rank in range(size):
            env = local_rank_variables(rank, size, port) | search_path_for_children()
            errors = folder / f"{rank}.err"
            out = on.enter_context(errors.open("wb"))
            ranks[errors] = subprocess.Popen(command, env=env, stderr=out)
        return wait_for_ranks(ranks)


def wait_for_ranks(ranks: Mapping[Path, subprocess.Popen[bytes]]) -> int:
    """The status of all ranks; where one fails, the others are killed and its errors printed.

    The keys are the files of the ranks' errors.
    """
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            statuses = [process.poll() for process in ranks.values()]
            failed = [status for status in statuses if status]
            if failed:
                time.sleep(GRACE_S)
                ended = [file for file, process in ranks.items() if process.poll()]
                errors = [file.read_text(errors="replace") for file in ended]
                print(_what_went_wrong(errors), file=sys.stderr, end="")
                return EXIT_INPUT if EXIT_INPUT in failed else EXIT_FAILED
            if all(status == 0 for status in statuses):
                return EXIT_DONE
            time.sleep(0.05)
        raise GnnhpcError(f"verify: ranks did not finish within {TIMEOUT_S:.0f} s")
    finally:
        for process in ranks.values():
            process.kill()
            process.wait()


def _what_went_wrong(errors: list[str]) -> str:
    """The line that says what was wrong, if a rank printed one; else all that failed ranks printed.

    The other ranks lose their connection, and their tracebacks would hide that line.
    """
    for line in "".join(errors).splitlines(keepends=True):
        if line.startswith(("error:", "failed:")):
            return line
    return "".join(errors)

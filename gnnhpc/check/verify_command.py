"""The command `python -m gnnhpc verify`: start the ranks, or run as one, and print the verdict."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, GnnhpcError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.secret import secret_of_user
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.experiment.own_model_files import copy_models, load_model
from gnnhpc.records.run_paths import RunPaths

if TYPE_CHECKING:
    from gnnhpc.check.compare_gradients import Difference, Verdict

TIMEOUT_S = 600.0


def verify_manifest(path: Path, steps: int, *, float64: bool) -> int:
    """Verify every cell of a sweep, but only one of those that differ in repeat or length alone."""
    cells: dict[str, Cell] = {}
    for cell in read_manifest(path):
        same = cell.experiment.model_copy(update={"repeat": 0, "train_steps": 1})
        cells.setdefault(same.id, cell)
    for cell in cells.values():
        load_model(cell.experiment, RunPaths(path.resolve().parent))
    return verify_cells(cells.values(), steps, float64=float64)


def verify_cells(cells: Collection[Cell], steps: int, *, float64: bool) -> int:
    """Verify one after another; the exit status is the worst of them."""
    status = EXIT_DONE
    for cell in cells:
        cell.experiment.model.check_here()
    for cell in cells:
        experiment = cell.experiment
        if float64:
            experiment = experiment.model_copy(update={"dtype": "float64"})
        this = dataclasses.replace(cell, experiment=experiment)
        environment = read_environment()
        if environment.world_size == experiment.process_layout.world_size:
            status = max(status, _as_rank(this, environment, steps))
        else:
            status = max(status, _spawn(this, steps))
    return status


def _as_rank(cell: Cell, environment: Environment, steps: int) -> int:
    from gnnhpc.check.verify import verify_rank
    from gnnhpc.data.roots import data_root

    root = data_root(cell.data_root)
    verdict = verify_rank(cell.experiment, environment, root, steps, secret_of_user())
    if verdict is None:
        return EXIT_DONE
    print_verdict(cell.experiment, verdict)
    return EXIT_DONE if verdict.passed else EXIT_FAILED


def _spawn(cell: Cell, steps: int) -> int:
    """Start a `verify --cell` for each rank on this machine."""
    size = cell.experiment.process_layout.world_size
    replicas = cell.experiment.layout.replicas
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="gnnhpc-verify-") as folder:
        file = Path(folder) / "cell.jsonl"
        file.write_text(cell.to_line() + "\n", encoding="utf-8")
        copy_models(RunPaths(Path(folder)), [cell.experiment])
        command = [sys.executable, "-m", "gnnhpc", "verify", "--cell", str(file)]
        command += ["--steps", str(steps)]
        ranks = []
        for rank in range(size):
            env = os.environ | search_path_for_children()
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                # Turns shapes that differ between ranks into errors; DDP's logger crashes under it
                # (torch 2.13), so only where there are no replicas.
                "TORCH_DISTRIBUTED_DEBUG": "INFO" if replicas > 1 else "DETAIL",
            }
            ranks.append(subprocess.Popen(command, env=env))
        return _wait(ranks)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """The first failing rank's status; all other ranks are killed."""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            statuses = [rank.poll() for rank in ranks]
            failed = [status for status in statuses if status]
            if failed:
                time.sleep(1.0)
                return failed[0] if failed[0] > 0 else EXIT_FAILED
            if all(status == 0 for status in statuses):
                return EXIT_DONE
            time.sleep(0.05)
        raise GnnhpcError(f"verify: ranks did not finish within {TIMEOUT_S:.0f} s")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def print_verdict(experiment: Experiment, verdict: Verdict) -> None:
    """A line a layer, then the verdict."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{experiment.id} against its sequential twin", title_justify="left")
    for column in ("layer", "gradient", "twin's", "relative difference", "parameters"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    trained = {d.layer: d for d in verdict.parameters}
    for d in verdict.gradients:
        table.add_row(*_row(d, trained.get(d.layer)))
    console.print(table)
    console.print(
        f"loss {verdict.loss:.8g}, twin's {verdict.twin_loss:.8g}; "
        f"worst layer {verdict.worst:.2e}, trained parameters {verdict.worst_parameters:.2e}"
        f"{_rounding(verdict)}, tolerance {verdict.tolerance:.0e}"
    )
    compared = ", ".join(f"{what} {worst:.1e}" for what, worst in verdict.worst_of.items())
    console.print(f"largest relative differences: {compared}")
    for cause in verdict.causes:
        console.print(f"  {cause}")
    console.print("PASSED" if verdict.passed else "FAILED")


def _rounding(verdict: Verdict) -> str:
    """What rounding alone explains."""
    said = ""
    if verdict.rounding > verdict.tolerance:
        said += f" (the twin's own in single precision: {verdict.rounding:.2e})"
    if verdict.kinks:
        said += f" ({verdict.kinks} scores at the leaky ReLU's kink took the other slope)"
    if verdict.lost:
        said += f" (in a step rounding hides the gradient of {', '.join(verdict.lost)})"
    return said


def _row(gradient: Difference, parameters: Difference | None) -> tuple[str, ...]:
    return (
        gradient.layer,
        f"{gradient.norm:.4e}",
        f"{gradient.twin_norm:.4e}",
        f"{gradient.relative:.2e}",
        "" if parameters is None else f"{parameters.relative:.2e}",
    )

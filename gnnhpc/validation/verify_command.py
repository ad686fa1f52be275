"""The command `gnnhpc verify`: starts the ranks of a cell or runs as one, prints the verdict."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import Environment, local_rank_variables, read_environment
from gnnhpc.experiment.custom_model_files import copy_models, load_model
from gnnhpc.experiment.manifest import Cell, read_manifest

TIMEOUT_S = 600.0
GRACE_S = 1.0
"""How long other ranks may go on after one has failed."""
_OWN_ERRORS = ("error:", "failed:")
"""The beginnings of a line that says all that a user needs."""


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
            status = max(status, _as_rank(cell, environment, steps))
        else:
            status = max(status, _spawn(cell, steps))
    return status


def _as_rank(cell: Cell, environment: Environment, steps: int) -> int:
    from gnnhpc.data.data_files import data_root
    from gnnhpc.validation.verify import print_parity, verify_rank

    root = data_root(cell.data_root)
    parity = verify_rank(cell.experiment, environment, root, steps)
    if parity is None:
        return EXIT_DONE
    print_parity(cell.experiment, parity)
    return EXIT_DONE if parity.check.verdict == "ok" else EXIT_FAILED


@dataclasses.dataclass(frozen=True)
class _Rank:
    process: subprocess.Popen[bytes]
    errors: Path


def _spawn(cell: Cell, steps: int) -> int:
    """Start a `verify --cell` for each rank on this machine."""
    size = cell.experiment.process_layout.world_size
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="gnnhpc-verify-") as name:
        folder = Path(name)
        file = folder / "cell.jsonl"
        file.write_text(cell.to_line() + "\n", encoding="utf-8")
        copy_models(RunPaths(folder), [cell.experiment])
        command = [sys.executable, "-m", "gnnhpc", "verify", "--cell", str(file)]
        command += ["--steps", str(steps)]
        ranks = []
        for rank in range(size):
            env = local_rank_variables(rank, size, port) | search_path_for_children()
            errors = folder / f"{rank}.err"
            with errors.open("wb") as out:
                ranks.append(_Rank(subprocess.Popen(command, env=env, stderr=out), errors))
        return _wait(ranks)


def _wait(ranks: Sequence[_Rank]) -> int:
    """The first failing rank's status; prints what went wrong, and kills the other ranks."""
    deadline = time.monotonic() + TIMEOUT_S
    processes = [rank.process for rank in ranks]
    try:
        while time.monotonic() < deadline:
            statuses = [process.poll() for process in processes]
            failed = [status for status in statuses if status]
            if failed:
                time.sleep(GRACE_S)
                _print_errors(ranks)
                status = EXIT_INPUT if EXIT_INPUT in failed else failed[0]
                return status if status > 0 else EXIT_FAILED
            if all(status == 0 for status in statuses):
                return EXIT_DONE
            time.sleep(0.05)
        raise GnnhpcError(f"verify: ranks did not finish within {TIMEOUT_S:.0f} s")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _print_errors(ranks: Sequence[_Rank]) -> None:
    """A line that says what was wrong, if a rank printed one; else all that failed ranks printed.

    The other ranks lose their connection, and their tracebacks would hide that line, or the verdict
    that rank 0 has printed to stdout.
    """
    printed = [_text(rank) for rank in ranks if rank.process.poll()]
    for text in printed:
        for line in text.splitlines():
            if line.startswith(_OWN_ERRORS):
                print(line, file=sys.stderr)
                return
    if any(rank.process.poll() == EXIT_FAILED and not _text(rank) for rank in ranks):
        return
    for text in printed:
        print(text, file=sys.stderr, end="")


def _text(rank: _Rank) -> str:
    return rank.errors.read_text(errors="replace")

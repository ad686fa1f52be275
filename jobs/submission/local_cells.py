"""Runs cells on this machine, one after another, as they would disturb each other's times."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import SITE_VARIABLE
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import read_attempts
from jobs.run.run_state import failure_cause
from jobs.submission.submission import Submission

LOCK_VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file for the machine's lock; empty for runs that may run at the same time."""
_GRACE_S = 20.0
"""How long stopped ranks may take to save."""
_POLL_S = 0.1
_WEEK_MIN = 7 * 24 * 60
Show = Callable[[str], None]
"""Is called with a line as a cell starts or ends."""
_OF_OTHER_LAUNCHERS = ("SLURM", "PMI", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_")


@dataclass(frozen=True)
class LocalCell:
    """What starts one cell."""

    array: str
    index: int
    id: str
    ranks: int
    gpu: bool


@dataclass(frozen=True)
class LocalRun:
    """Cells of a run to run on this machine, in order, and how."""

    root: str
    cells: tuple[LocalCell, ...]
    environment: dict[str, str]
    """Variables of the ranks: packages, threads, site."""
    time_min: int
    """Time limit of one cell, minutes; a week unless the site sets one."""
    signal_s: int
    """Seconds before the time limit at which ranks are asked to save and stop."""
    parallel: int
    """Cells that run at the same time."""
    python: str
    live: bool

    @classmethod
    def of(cls, submission: Submission, paths: RunPaths) -> LocalRun:
        launch = submission.launch
        site, parallel = launch.site, launch.site.max_parallel or 1
        # The other settings of a site have no meaning here.
        used = {"name": launch.site_name, "cpus_per_task": site.cpus_per_task, "parallel": parallel}
        threads = str(site.cpus_per_task)
        search = search_path_for_children() if launch.live else search_path_for_children(paths.code)
        variables = {SITE_VARIABLE: json.dumps(used)}
        variables |= {"GNNHPC_THREADS": threads, "OMP_NUM_THREADS": threads}
        return cls(
            root=str(paths.root),
            cells=tuple(_local_cell(cell) for cell in submission.cells),
            environment=search | variables,
            time_min=site.time_min if "time" in site.model_fields_set else _WEEK_MIN,
            signal_s=site.signal,
            parallel=parallel,
            python=launch.python,
            live=launch.live,
        )

    @property
    def paths(self) -> RunPaths:
        return RunPaths(Path(self.root))


def _local_cell(cell: Cell) -> LocalCell:
    gpu = cell.settings.get("device") == "gpu"
    return LocalCell(cell.array, cell.index, cell.id, cell.world_size, gpu)


def print_now(line: str) -> None:
    print(line, flush=True)


def run_cells(run: LocalRun, show: Show = print_now) -> int:
    """Run the cells in order; returns how many failed, and a failed one does not stop the others.

    `show` gets a line when a cell starts and one when it ends. On SIGINT or SIGTERM the ranks are
    stopped first, then KeyboardInterrupt is raised. Raises GnnhpcError where a cell cannot be
    started, as on a full disk.
    """
    with _interrupt_on_sigterm(), machine_lock():
        waiting, running, failed, number = list(run.cells), list[_RunningCell](), 0, 0
        try:
            while waiting or running:
                while waiting and len(running) < run.parallel:
                    cell = waiting.pop(0)
                    running.append(_start(run, cell, others=len(waiting)))
                    show(f"{cell.array} {cell.index}: {cell.id} started")
                for one in [one for one in running if one.has_ended(run)]:
                    running.remove(one)
                    number += 1
                    done, line = one.how_it_ended(run.paths)
                    failed += not done
                    show(f"[{number}/{len(run.cells)}] {one.cell.array} {one.cell.index}: {line}")
                time.sleep(_POLL_S)
        finally:
            _stop(running)
    return failed


class _RunningCell:
    """The ranks of one cell: processes of one group."""

    def __init__(self, cell: LocalCell, ranks: list[subprocess.Popen[bytes]], before: int) -> None:
        self.cell, self.ranks, self.before = cell, ranks, before
        self.start = time.monotonic()
        self.signalled = False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all ranks and what they have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.ranks[0].pid, number)

    def has_ended(self, run: LocalRun) -> bool:
        """Whether all ranks have ended; signals and kills those that exceed the time limit."""
        if all(rank.poll() is not None for rank in self.ranks):
            return True
        elapsed = time.monotonic() - self.start
        if elapsed > run.time_min * 60:
            self.send(signal.SIGKILL)
        elif elapsed > run.time_min * 60 - run.signal_s and not self.signalled:
            self.signalled = True
            self.send(signal.SIGUSR2)
        return False

    def how_it_ended(self, paths: RunPaths) -> tuple[bool, str]:
        """Whether the cell is done, and its status, cause, flags and seconds in one line."""
        seconds = f"{time.monotonic() - self.start:.1f} s"
        attempts = read_attempts(paths.cell(self.cell.id))
        if not attempts or attempts[-1].number == self.before:
            logs = f"logs/{self.cell.array}-{self.cell.index}-*.log"
            return False, f"failed before it had an attempt: see {logs}, {seconds}"
        newest = attempts[-1]
        cause = failure_cause(newest, self.cell.ranks)
        if newest.result is None:
            return False, f"failed: {cause or 'the ranks ended without a result'}, {seconds}"
        line = newest.status + (f": {cause}" if cause else "")
        flags = ", ".join(newest.result.flags)
        return newest.status == "done", f"{line}{f' (flags: {flags})' if flags else ''}, {seconds}"


def _start(run: LocalRun, cell: LocalCell, others: int) -> _RunningCell:
    paths = run.paths
    existing = paths.cell(cell.id).attempts()
    before = existing[-1].number if existing else 0
    log, port = paths.logs / f"{cell.array}-{cell.index}-local-{os.getpid()}.log", _free_port()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            for rank in range(cell.ranks):
                variables = _rank_variables(cell, rank, port)
                group = ranks[0].pid if ranks else 0
                ranks.append(_start_rank(run, cell, variables, group, stream))
    except OSError as error:
        _stop([_RunningCell(cell, ranks, before)] if ranks else [])
        # A disk that fills up while a file is written names no file.
        place = error.filename or paths.root
        more = f" and {others} more" if others else ""
        raise GnnhpcError(
            f"{cell.array} {cell.index}: cannot be started, {place}: {error.strerror or error}; "
            f"not started: this cell{more}; then {as_typed('jobs', 'rerun')} {paths.root} --missing"
        ) from None
    return _RunningCell(cell, ranks, before)


def _rank_variables(cell: LocalCell, rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set for a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(cell.ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(cell.ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"local-{os.getpid()}-{cell.array}-{cell.index}",
    }


def _start_rank(
    run: LocalRun, cell: LocalCell, variables: dict[str, str], group: int, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start one rank in a process group, or as the leader of a new one (0)."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_OTHER_LAUNCHERS)
    }
    command = [run.python, "-u", "-m", "gnnhpc", "run", "--manifest", str(run.paths.manifest)]
    command += ["--array", cell.array, "--index", str(cell.index)]
    return subprocess.Popen(
        [*command, *(["--live"] if run.live else [])],
        env=kept | run.environment | variables,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        process_group=group,
    )


def _free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def _stop(running: Iterable[_RunningCell]) -> None:
    """Ask the ranks to save and end, and kill them if they do not."""
    cells = list(running)
    for one in cells:
        one.send(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(rank.poll() is None for one in cells for rank in one.ranks):
        if time.monotonic() > deadline:
            for one in cells:
                one.send(signal.SIGKILL)
        time.sleep(_POLL_S)


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and keep others from it.

    Raises InputError where the lock's file cannot be opened.
    """
    default = str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock")
    name = os.environ.get(LOCK_VARIABLE, default)
    if not name:
        yield
        return
    from filelock import FileLock, Timeout

    lock = FileLock(name, mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print("waits for another local run on this machine", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        allowed = f"a file that may be written, or another ${LOCK_VARIABLE}"
        raise InputError(name, None, f"{error.strerror}", allowed) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the ranks are stopped first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

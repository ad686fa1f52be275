"""Runs cells on this machine, one after another: measurements at the same time disturb each other.

`python -m jobs.run.local_runs RUN` is the supervisor of a local run that nobody waits for: a
process that outlives `submit` and reads from stdin which cells to run.
"""

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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError, report_errors
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import SITE_VARIABLE
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.attempts import Attempt, read_attempts
from jobs.run.attempt_progress import failure_cause
from jobs.run.submission import Submission
from jobs.run.submission_records import process_start

LOCK_VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file for the machine's lock; empty for runs that may run at the same time."""
SUPERVISOR_GRACE_S = 30.0
_GRACE_S = 20.0
"""How long stopped ranks may take to save."""
_POLL_S = 0.1
_WEEK_MIN = 7 * 24 * 60
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


@dataclass(frozen=True)
class EndedCell:
    """How one local cell ended."""

    cell: LocalCell
    done: bool
    line: str
    """Status, cause and flags in one line."""
    seconds: float


class Progress(Protocol):
    """Is called as the cells of a local run start and end."""

    def started(self, cell: LocalCell) -> None: ...

    def ended(self, ended: EndedCell, number: int, total: int) -> None: ...


class PrintedProgress:
    """One line when a cell starts and one when it ends."""

    def started(self, cell: LocalCell) -> None:
        print(f"{cell.array} {cell.index}: {cell.id} started", flush=True)

    def ended(self, ended: EndedCell, number: int, total: int) -> None:
        cell = ended.cell
        line = f"{cell.array} {cell.index}: {ended.line}, {ended.seconds:.1f} s"
        print(f"[{number}/{total}] {line}", flush=True)


def run_cells(run: LocalRun, progress: Progress) -> int:
    """Run the cells in order; returns how many failed, and a failed one does not stop the others.

    On SIGINT or SIGTERM the ranks are stopped first, then KeyboardInterrupt is raised. Raises
    GnnhpcError where a cell cannot be started, as on a full disk.
    """
    with _interrupt_on_sigterm(), machine_lock():
        waiting, running, failed, number = list(run.cells), list[_RunningCell](), 0, 0
        try:
            while waiting or running:
                while waiting and len(running) < run.parallel:
                    cell = waiting.pop(0)
                    running.append(_start(run, cell, others=len(waiting)))
                    progress.started(cell)
                for one in [one for one in running if one.has_ended(run)]:
                    running.remove(one)
                    number += 1
                    ended = one.how_it_ended(run.paths)
                    failed += not ended.done
                    progress.ended(ended, number, len(run.cells))
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

    def how_it_ended(self, paths: RunPaths) -> EndedCell:
        seconds = time.monotonic() - self.start
        attempts = read_attempts(paths.cell(self.cell.id))
        if not attempts or attempts[-1].number == self.before:
            name = f"{self.cell.array}-{self.cell.index}-*.log"
            line = f"failed before it had an attempt: see logs/{name}"
            return EndedCell(self.cell, False, line, seconds)
        newest = attempts[-1]
        return EndedCell(self.cell, newest.status == "done", _line(newest, self.cell), seconds)


def _line(attempt: Attempt, cell: LocalCell) -> str:
    """How an attempt ended: done (flags: drift)."""
    cause = failure_cause(attempt, cell.ranks)
    if attempt.result is None:
        return f"failed: {cause or 'the ranks ended without a result'}"
    line = attempt.status + (f": {cause}" if cause else "")
    flags = attempt.result.flags
    return f"{line} (flags: {', '.join(flags)})" if flags else line


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


class Supervisor:
    """A started process that waits for its cells."""

    def __init__(self, process: subprocess.Popen[bytes], run: LocalRun) -> None:
        self._process, self._run = process, run
        self.pid = process.pid

    def begin(self) -> None:
        """Send the cells; without it the process ends when this one does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(self._run)).encode())
        self._process.stdin.close()


def start_supervisor(run: LocalRun) -> Supervisor:
    """Start a process that outlives this one. Raises GnnhpcError where the system refuses that."""
    log = run.paths.logs / f"supervisor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs.run.local_runs"],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | search_path_for_children(),
            )
    except OSError as error:
        raise GnnhpcError(f"{log}: {error.strerror}, no cell was started") from None
    return Supervisor(process, run)


def stop_supervisors(pids: Iterable[int]) -> None:
    """Stop these processes, and wait while their ranks save, for at most half a minute."""
    stopped = set(pids)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + SUPERVISOR_GRACE_S
    while any(process_start(pid) is not None for pid in stopped):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)


@report_errors
def main() -> int:
    """Run the cells that stdin has, as a supervisor."""
    text = sys.stdin.read()
    if not text:
        # The submitting process died before it had recorded the submission.
        return 1
    raw = json.loads(text)
    os.umask(0o022)
    run = LocalRun(**raw | {"cells": tuple(LocalCell(**cell) for cell in raw["cells"])})
    try:
        failed = run_cells(run, PrintedProgress())
    except KeyboardInterrupt:
        print("cancelled", flush=True)
        return 1
    print(f"{len(run.cells) - failed} done, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

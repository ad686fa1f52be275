"""Runs cells on this machine, one after another, as they would disturb each other's times.

They run in the submitting process with --wait, else in a supervisor that outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, report_errors
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import SITE_VARIABLE, local_rank_variables
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import read_attempts
from jobs.run.local_lock import machine_lock
from jobs.run.run_state import failure_cause
from jobs.run.submission_records import process_start
from jobs.slurm.launch import Launch

_GRACE_S = 20.0
"""How long stopped ranks may take to save; a supervisor may take ten seconds more."""
_POLL_S = 0.1
_WEEK_MIN = 7 * 24 * 60


@dataclass(frozen=True)
class LocalRun:
    """Cells of a run to run on this machine, and how; the site's other settings have no use."""

    paths: RunPaths
    cells: tuple[str, ...]
    """Ids of the cells in their order."""
    launch: Launch

    @property
    def parallel(self) -> int:
        """Cells that run at the same time."""
        return self.launch.site.max_parallel or 1

    @property
    def limit_s(self) -> float:
        """Time limit of one cell, seconds; a week unless the site sets one."""
        site = self.launch.site
        return 60.0 * (site.time_min if "time" in site.model_fields_set else _WEEK_MIN)

    def variables(self) -> dict[str, str]:
        """Variables of the ranks besides their own: packages, threads, site."""
        launch, cpus = self.launch, self.launch.site.cpus_per_task
        used = {"name": launch.site_name, "cpus_per_task": cpus, "parallel": self.parallel}
        code = () if launch.live else (self.paths.code,)
        threads = {name: str(cpus) for name in ("GNNHPC_THREADS", "OMP_NUM_THREADS")}
        return search_path_for_children(*code) | threads | {SITE_VARIABLE: json.dumps(used)}


def run_cells(run: LocalRun) -> int:
    """Run the cells in order; returns how many failed or are invalid, which stops no other cell.

    Prints a line when a cell starts and one when it ends. On SIGINT or SIGTERM the ranks are
    stopped first, then KeyboardInterrupt is raised. Raises GnnhpcError where a cell cannot be
    started, as on a full disk.
    """
    with _interrupt_on_sigterm(), machine_lock(run.paths.root):
        cells = {cell.id: cell for cell in read_manifest(run.paths.manifest)}
        waiting, running = [cells[each] for each in run.cells], list[_RunningCell]()
        failed, number = 0, 0
        try:
            while waiting or running:
                while waiting and len(running) < run.parallel:
                    cell = waiting.pop(0)
                    running.append(_start(run, cell, others=len(waiting)))
                    print(f"{cell.array} {cell.index}: {cell.id} started", flush=True)
                for one in [one for one in running if one.has_ended(run)]:
                    running.remove(one)
                    number += 1
                    done, line = one.how_it_ended(run.paths)
                    failed += not done
                    place = f"[{number}/{len(run.cells)}] {one.cell.array} {one.cell.index}"
                    print(f"{place}: {line}", flush=True)
                time.sleep(_POLL_S)
        finally:
            _stop(running)
    return failed


class _RunningCell:
    """The ranks of one cell: processes of one group."""

    def __init__(self, cell: Cell, ranks: list[subprocess.Popen[bytes]], before: int) -> None:
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
        left = run.limit_s - (time.monotonic() - self.start)
        if left < 0:
            self.send(signal.SIGKILL)
        elif left < run.launch.site.signal and not self.signalled:
            self.signalled = True
            self.send(signal.SIGUSR2)
        return False

    def how_it_ended(self, paths: RunPaths) -> tuple[bool, str]:
        """Whether the cell is done and valid; its status, cause, flags and seconds in one line."""
        seconds = f"{time.monotonic() - self.start:.1f} s"
        attempts = read_attempts(paths.cell(self.cell.id))
        if not attempts or attempts[-1].number == self.before:
            logs = f"logs/{self.cell.array}-{self.cell.index}-*.log"
            return False, f"failed before it had an attempt: see {logs}, {seconds}"
        newest = attempts[-1]
        cause = failure_cause(newest, self.cell.world_size)
        if newest.result is None:
            return False, f"failed: {cause or 'the ranks ended without a result'}, {seconds}"
        wrong = newest.status == "done" and not newest.valid
        line = ("invalid" if wrong else newest.status) + (f": {cause}" if cause else "")
        flags = ", ".join(newest.result.flags)
        return newest.valid, f"{line}{f' (flags: {flags})' if flags else ''}, {seconds}"


def _start(run: LocalRun, cell: Cell, others: int) -> _RunningCell:
    """Start the ranks of a cell with the variables that torchrun would set."""
    paths = run.paths
    existing = paths.cell(cell.id).attempts()
    log = paths.logs / f"{cell.array}-{cell.index}-local-{os.getpid()}.log"
    port, size = _free_port(), cell.world_size
    key = {"TORCHELASTIC_RUN_ID": f"local-{os.getpid()}-{cell.array}-{cell.index}"}
    command = [run.launch.python, "-u", "-m", "gnnhpc", "run", "--manifest", str(paths.manifest)]
    command += ["--array", cell.array, "--index", str(cell.index)]
    command += ["--live"] if run.launch.live else []
    ranks: list[subprocess.Popen[bytes]] = []
    started = _RunningCell(cell, ranks, existing[-1].number if existing else 0)
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            for rank in range(size):
                ranks.append(
                    subprocess.Popen(
                        command,
                        env=local_rank_variables(rank, size, port) | run.variables() | key,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                        process_group=ranks[0].pid if ranks else 0,
                    )
                )
    except OSError as error:
        _stop([started] if ranks else [])
        # A disk that fills up while a file is written names no file.
        place = error.filename or paths.root
        more = f" and {others} more" if others else ""
        raise GnnhpcError(
            f"{cell.array} {cell.index}: cannot be started, {place}: {error.strerror or error}; "
            f"not started: this cell{more}; then {as_typed('jobs', 'rerun')} {paths.root} --missing"
        ) from None
    return started


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


def start_supervisor(paths: RunPaths) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, and waits on its stdin for a pickled LocalRun.

    It ends when this process does before that. Raises GnnhpcError where the system refuses it.
    """
    log = paths.logs / f"supervisor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    main = "from jobs.submission.local_runs import supervise; raise SystemExit(supervise())"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-c", main],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | search_path_for_children(),
            )
    except OSError as error:
        raise GnnhpcError(f"{log}: {error.strerror}, no cell was started") from None


@report_errors
def supervise() -> int:
    """Run the cells of the LocalRun on stdin; the submitting process has recorded this one."""
    sent = sys.stdin.buffer.read()
    if not sent:
        return 1
    os.umask(0o022)
    run: LocalRun = pickle.loads(sent)
    try:
        failed = run_cells(run)
    except KeyboardInterrupt:
        print("cancelled", flush=True)
        return 1
    print(f"{len(run.cells) - failed} done, {failed} failed", flush=True)
    return 1 if failed else 0


def stop_supervisors(pids: Iterable[int]) -> None:
    """Stop these processes, and wait while their ranks save, for at most half a minute."""
    stopped = set(pids)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S + 10
    while any(process_start(pid) is not None for pid in stopped):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)

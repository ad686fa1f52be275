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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, report_errors
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import SITE_VARIABLE, local_rank_variables
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.attempts import read_attempts
from jobs.run.attempt_files import failure_cause
from jobs.run.local_lock import machine_lock
from jobs.run.submission_records import process_start
from jobs.slurm.launch import Launch

_GRACE_S = 20.0
"""How long stopped ranks may take to save; a supervisor may take ten seconds more."""
_POLL_S = 0.1
_WEEK_MIN = 7 * 24 * 60
Ranks = list[subprocess.Popen[bytes]]
"""The processes of a cell, which are one process group."""


@dataclass(frozen=True)
class LocalRun:
    """Cells of a run to run on this machine, and how; the site's other settings have no use."""

    paths: RunPaths
    cells: tuple[str, ...]
    """Ids of the cells in their order."""
    launch: Launch

    @property
    def limit_s(self) -> float:
        """Time limit of one cell, seconds; a week unless the site sets one."""
        site = self.launch.site
        return 60.0 * (site.time_min if "time" in site.model_fields_set else _WEEK_MIN)

    def variables(self) -> dict[str, str]:
        """Variables of the ranks besides their own: packages, threads, site."""
        launch, cpus = self.launch, self.launch.site.cpus_per_task
        used = {"name": launch.site_name, "cpus_per_task": cpus}
        code = () if launch.live else (self.paths.code,)
        threads = {name: str(cpus) for name in ("GNNHPC_THREADS", "OMP_NUM_THREADS")}
        return search_path_for_children(*code) | threads | {SITE_VARIABLE: json.dumps(used)}


def run_cells(run: LocalRun) -> int:
    """Run the cells in order; returns how many failed or are invalid, which stops no other cell.

    Prints a line when a cell starts and one when it ends. On SIGINT or SIGTERM the ranks are
    stopped first, then KeyboardInterrupt is raised. Raises GnnhpcError where a cell cannot be
    started, as on a full disk.
    """
    failed = 0
    with _interrupt_on_sigterm(), machine_lock():
        cells = {cell.id: cell for cell in read_manifest(run.paths.manifest)}
        for number, cell in enumerate((cells[each] for each in run.cells), 1):
            before = run.paths.cell(cell.id).attempts()
            start = time.monotonic()
            ranks: Ranks = []
            try:
                with _signals_held():
                    _start(run, cell, ranks, others=len(run.cells) - number)
                print(f"{cell.array} {cell.index}: {cell.id} started", flush=True)
                _wait(ranks, run)
            finally:
                _stop(ranks)
            done, words = _how_it_ended(run.paths, cell, len(before))
            failed += not done
            place = f"[{number}/{len(run.cells)}] {cell.array} {cell.index}"
            print(f"{place}: {words}, {time.monotonic() - start:.1f} s", flush=True)
    return failed


def _start(run: LocalRun, cell: Cell, ranks: Ranks, others: int) -> None:
    """Start the ranks of a cell, in one process group, with the variables that torchrun sets."""
    paths, size, port = run.paths, cell.world_size, _free_port()
    log = paths.logs / f"{cell.array}-{cell.index}-local-{os.getpid()}.log"
    key = {"TORCHELASTIC_RUN_ID": f"local-{os.getpid()}-{cell.array}-{cell.index}"}
    command = [run.launch.python, "-u", "-m", "gnnhpc", "run", "--manifest", str(paths.manifest)]
    command += ["--array", cell.array, "--index", str(cell.index)]
    command += ["--live"] if run.launch.live else []
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
        # A disk that fills up while a file is written names no file.
        place = error.filename or paths.root
        more = f" and {others} more" if others else ""
        raise GnnhpcError(
            f"{cell.array} {cell.index}: cannot be started, {place}: {error.strerror or error}; "
            f"not started: this cell{more}; then {as_typed('jobs', 'rerun')} {paths.root} --missing"
        ) from None


def _wait(ranks: Ranks, run: LocalRun) -> None:
    """Return when all ranks have ended; signals and kills those that exceed the time limit."""
    limit = time.monotonic() + run.limit_s
    warnings = [(limit - run.launch.site.signal, signal.SIGUSR2), (limit, signal.SIGKILL)]
    while any(rank.poll() is None for rank in ranks):
        if warnings and time.monotonic() > warnings[0][0]:
            _send(ranks, warnings.pop(0)[1])
        time.sleep(_POLL_S)


def _stop(ranks: Ranks) -> None:
    """Ask the ranks to save and end, and kill them if they do not."""
    if all(rank.poll() is not None for rank in ranks):
        return
    _send(ranks, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(rank.poll() is None for rank in ranks):
        if time.monotonic() > deadline:
            _send(ranks, signal.SIGKILL)
        time.sleep(_POLL_S)


def _send(ranks: Ranks, number: signal.Signals) -> None:
    """Send a signal to all ranks and what they have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(ranks[0].pid, number)


def _how_it_ended(paths: RunPaths, cell: Cell, before: int) -> tuple[bool, str]:
    """Whether a cell is done and valid after it had `before` attempts; status, cause and flags."""
    attempts = read_attempts(paths.cell(cell.id))
    if len(attempts) == before:
        return False, f"failed before it had an attempt: see logs/{cell.array}-{cell.index}-*.log"
    newest = attempts[-1]
    cause = failure_cause(newest, cell.world_size)
    if newest.result is None:
        return False, f"failed: {cause or 'the ranks ended without a result'}"
    wrong = newest.status == "done" and not newest.valid
    words = ("invalid" if wrong else newest.status) + (f": {cause}" if cause else "")
    flags = ", ".join(newest.result.flags)
    return newest.valid, f"{words} (flags: {flags})" if flags else words


def _free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the ranks are stopped first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _handler(interrupt, signal.SIGTERM):
        yield


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, by which all its ranks are known."""
    held: list[int] = []
    with _handler(lambda number, _: held.append(number), signal.SIGINT, signal.SIGTERM):
        yield
    if held:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handler(handle: Callable[[int, Any], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals so within the block; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

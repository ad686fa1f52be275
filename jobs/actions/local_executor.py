"""Runs cells on this machine through submitit's local executor.

One cell at a time unless the site says otherwise: measurements on one machine must not overlap.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import submitit

from gnnhpc.core.cli_support import as_typed
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.python_path import search_path_for_children
from gnnhpc.records.failures import utc_now, write_failure
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Failure
from jobs.actions import local_controller
from jobs.actions.local_cells import EndedCell, LocalCell, LocalLimits, ProgressListener
from jobs.actions.local_turns import machine_taken, ranks_lock_file
from jobs.cluster.slurm_submit import submitit_folder
from jobs.folder.attempt_files import read_attempt_result, read_failure_cause
from jobs.task import CellTask

_POLL_S = 0.1
_GRACE_S = 20.0


def run_local_cells(
    paths: RunPaths, cells: Sequence[LocalCell], limits: LocalLimits, report: ProgressListener
) -> list[EndedCell]:
    """Run the cells in order; a failed one does not stop the others.

    On SIGINT or SIGTERM the running ranks end first, then KeyboardInterrupt is raised. Where a cell
    cannot be started, as on a full disk, GnnhpcError is, once the running ones have ended: no
    other is tried.
    """
    report.expect(len(cells))
    with _rank_environment(limits), _interrupt_on_sigterm():
        try:
            with machine_taken():
                return _run_in_order(paths, cells, limits, report)
        finally:
            report.finish()


def _run_in_order(
    paths: RunPaths, cells: Sequence[LocalCell], limits: LocalLimits, report: ProgressListener
) -> list[EndedCell]:
    waiting = list(reversed(cells))
    running: list[tuple[LocalCell, submitit.Job[int], float, int]] = []
    ended: list[EndedCell] = []
    refused: GnnhpcError | None = None
    try:
        while waiting or running:
            while waiting and len(running) < limits.parallel:
                cell = waiting.pop()
                before = _newest_attempt(paths, cell)
                try:
                    job = _start(paths, cell, limits)
                except OSError as error:
                    refused = _not_started(paths, cell, error, len(waiting))
                    waiting.clear()
                    break
                running.append((cell, job, time.monotonic(), before))
                report.started(cell)
            for entry in [entry for entry in running if entry[1].done()]:
                running.remove(entry)
                cell, job, start, before = entry
                _keep_log(paths, cell, job)
                record_if_none_began(paths, cell, before, "its ranks ended before they began")
                ended.append(_ended_cell(paths, cell, before, time.monotonic() - start))
                report.ended(ended[-1])
            time.sleep(_POLL_S)
    except BaseException:
        _stop_ranks([job for _, job, _, _ in running])
        for cell, _, _, before in running:
            record_if_none_began(paths, cell, before, "cancelled before its ranks began")
        raise
    if refused is not None:
        raise refused
    return ended


def _not_started(paths: RunPaths, cell: LocalCell, error: OSError, others: int) -> GnnhpcError:
    """Why a cell has no ranks, in the system's words, and how to try it and the others later."""
    # A disk that fills up while a file is written names no file.
    place = error.filename or paths.root
    more = f" and {others} more" if others else ""
    return GnnhpcError(
        f"{cell.array} {cell.index}: cannot be started, {place}: {error.strerror or error}; "
        f"not tried: this cell{more}; then {as_typed('jobs', 'rerun')} {paths.root} --missing"
    )


def start_supervisor(paths: RunPaths) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one; it runs the cells that `send_cells` gives it.

    Raises GnnhpcError where the system refuses that.
    """
    log = paths.logs / f"supervisor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-m", "jobs.actions.supervise", str(paths.root)],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | search_path_for_children(),
            )
    except OSError as error:
        raise GnnhpcError(f"{log}: {error.strerror}, no cell was started") from None


def send_cells(
    process: subprocess.Popen[bytes], cells: Sequence[LocalCell], limits: LocalLimits
) -> None:
    """Tell a supervisor which cells to run; it starts none before."""
    assert process.stdin is not None
    message = {"cells": [asdict(cell) for cell in cells], "limits": asdict(limits)}
    process.stdin.write(json.dumps(message).encode())
    process.stdin.close()


def _start(paths: RunPaths, cell: LocalCell, limits: LocalLimits) -> submitit.Job[int]:
    executor = submitit.LocalExecutor(
        folder=submitit_folder(paths), python=shlex.quote(limits.python)
    )
    executor.update_parameters(
        timeout_min=limits.time_min,
        signal_delay_s=limits.signal_s,
        tasks_per_node=cell.ranks,
        stderr_to_stdout=True,
        setup=[local_controller.command(submitit_folder(paths), ranks_lock_file())],
        **_gpus(cell),
    )
    return executor.submit(CellTask(str(paths.manifest), cell.array, cell.index, limits.live))


def _gpus(cell: LocalCell) -> dict[str, object]:
    """One GPU a rank, of those in $CUDA_VISIBLE_DEVICES if it is set."""
    if not cell.gpu:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = tuple(int(part) for part in visible.split(",") if part.strip().isdigit())
    if numbers:
        return {"gpus_per_node": min(cell.ranks, len(numbers)), "visible_gpus": numbers}
    return {"gpus_per_node": cell.ranks}


def _newest_attempt(paths: RunPaths, cell: LocalCell) -> int:
    existing = paths.cell(cell.cell).attempts()
    return existing[-1].number if existing else 0


def record_if_none_began(paths: RunPaths, cell: LocalCell, before: int, error: str) -> None:
    """Tell of an attempt without records that no rank will write any.

    Where that cannot be written, as on a full disk, a line says so: it is unfinished then.
    """
    newest = _newest_attempt(paths, cell)
    attempt = paths.cell(cell.cell).attempt(newest)
    if newest == before or attempt.records(0).exists() or attempt.result.exists():
        return
    if read_failure_cause(attempt, cell.ranks) is None:
        failure = Failure(0, socket.gethostname(), None, None, error, utc_now())
        try:
            write_failure(attempt, failure, by=0)
        except OSError as failed:
            _tell_not_written(attempt.failure(0), failed)


def _ended_cell(paths: RunPaths, cell: LocalCell, before: int, seconds: float) -> EndedCell:
    newest = _newest_attempt(paths, cell)
    if newest == before:
        line = f"failed before it had an attempt: see logs/{cell.array}-{cell.index}-*.log"
        return EndedCell(cell, False, line, seconds)
    attempt = paths.cell(cell.cell).attempt(newest)
    result = read_attempt_result(attempt)
    if result is None:
        cause = read_failure_cause(attempt, cell.ranks)
        return EndedCell(
            cell, False, f"failed: {cause or 'the ranks ended without a result'}", seconds
        )
    line = result.status
    if result.cause:
        line += f": {result.cause}"
    if result.flags:
        line += f" (flags: {', '.join(result.flags)})"
    return EndedCell(cell, result.status == "done", line, seconds)


def _keep_log(paths: RunPaths, cell: LocalCell, job: submitit.Job[int]) -> None:
    """Copy what the ranks printed before they opened their own logs to the run's logs folder.

    Where it cannot be written, as on a full disk, a line says so, and other cells are run: their
    own files say what became of them.
    """
    target = paths.logs / f"{cell.array}-{cell.index}-local-{job.job_id}.log"
    try:
        paths.logs.mkdir(exist_ok=True)
        with target.open("w", encoding="utf-8") as stream:
            for rank in range(cell.ranks):
                path: Path = job.task(rank).paths.stdout
                with contextlib.suppress(FileNotFoundError):
                    text = path.read_text(encoding="utf-8", errors="replace")
                    stream.writelines(f"{rank}: {line}\n" for line in text.splitlines())
    except OSError as error:
        _tell_not_written(target, error)


def _tell_not_written(path: Path, error: OSError) -> None:
    print(f"{path}: cannot be written ({error.strerror})", file=sys.stderr, flush=True)


def _stop_ranks(jobs: Sequence[submitit.Job[int]]) -> None:
    """Ask the ranks to save and end; kill them if they do not."""
    for job in jobs:
        # A local job's id is the process id of submitit's controller, which forwards SIGTERM.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(not job.done() for job in jobs):
        if time.monotonic() > deadline:
            # Once: a second interrupt would end the controller before it has killed them.
            deadline = math.inf
            for job in jobs:
                job.cancel()
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _rank_environment(limits: LocalLimits) -> Iterator[None]:
    """Set the environment variables of the ranks; restored at the end of the block."""
    before = dict(os.environ)
    os.environ.update(limits.environment)
    os.environ["GNNHPC_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(limits.threads)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the ranks are stopped first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set a handler: SIGTERM ends the process, and the ranks with it.
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

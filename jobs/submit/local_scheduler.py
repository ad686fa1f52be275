"""This machine as a scheduler: it runs cells one after another, in the submitting process.

At the same time they would disturb each other's times.
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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import search_path_for_children
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import SITE_VARIABLE, local_rank_variables
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.libraries import check_sampler_is_here
from gnnhpc.records.attempts import read_attempts
from jobs.run.attempt_files import failure_cause
from jobs.run.run_state import RunState
from jobs.run.submission_records import process_start, record_job
from jobs.slurm.batch_script import Launch
from jobs.submit.submission import Job, Options, Submission

LOCK_VARIABLE = "GNNHPC_LOCAL_LOCK"
"""Another file for the machine's lock; empty for runs that may run at the same time."""
_GRACE_S = 20.0
"""How long stopped ranks may take to save; the process that runs them may take ten seconds more."""
_POLL_S = 0.1
Ranks = list[subprocess.Popen[bytes]]
"""The processes of a cell, which are one process group."""


class Local:
    """Processes of this machine."""

    job = "local process"
    """What a job is called where its id is printed."""

    def check(self, submission: Submission, options: Options) -> None:
        for name in options.after:
            raise InputError("--after", None, f"{name} with --cluster local", "--cluster slurm")
        for key in options.settings.keys() - {"cpus_per_task"}:
            raise InputError("--slurm", None, f"{key} with --cluster local", "--cluster slurm")

    def submit(self, submission: Submission, paths: RunPaths) -> list[Job]:
        """Records the cells for this process, which runs them by `wait`.

        Raises InputError for a library that a model or sampler needs and that is not here.
        """
        experiments = [cell.experiment for cell in submission.cells]
        for model in {experiment.model for experiment in experiments}:
            model.check_here()
        for sampling in filter(None, {experiment.sampling for experiment in experiments}):
            check_sampler_is_here(sampling.sampler)
        pid = os.getpid()
        for array in submission.arrays:
            record_job(paths, "local", array, str(pid), process_start(pid))
        return [(array, str(pid)) for array in submission.arrays]

    def wait(self, submission: Submission) -> int:
        """Run the cells in order; returns how many failed or are invalid, which stops no other.

        Prints a line when a cell starts and one when it ends. On SIGINT or SIGTERM the ranks are
        stopped first, then KeyboardInterrupt is raised. Raises GnnhpcError where a cell cannot be
        started, as on a full disk.
        """
        failed = 0
        with _interrupt_on_sigterm(), machine_lock():
            for number, cell in enumerate(submission.cells, 1):
                start = time.monotonic()
                done, words = _run_cell(RunPaths(submission.run), submission.launch, cell)
                failed += not done
                place = f"[{number}/{len(submission.cells)}] {cell.array} {cell.index}"
                print(f"{place}: {words}, {time.monotonic() - start:.1f} s", flush=True)
        return failed

    def query(self, state: RunState) -> Sequence[str]:
        return sorted(state.local_processes)

    def cancel(self, state: RunState, *, force: bool) -> Sequence[str]:
        """Stops the processes, and waits while their ranks save, for at most half a minute."""
        jobs = self.query(state)
        for job in jobs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(job), signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S + 10
        while any(process_start(int(job)) for job in jobs) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return jobs


def _run_cell(paths: RunPaths, launch: Launch, cell: Cell) -> tuple[bool, str]:
    """Whether the cell is done and valid now; its status, cause and flags."""
    before, ranks = len(paths.cell(cell.id).attempts()), Ranks()
    try:
        _start(paths, launch, cell, ranks)
        print(f"{cell.array} {cell.index}: {cell.id} started", flush=True)
        for rank in ranks:
            rank.wait()
    finally:
        _stop(ranks)
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


def _start(paths: RunPaths, launch: Launch, cell: Cell, ranks: Ranks) -> None:
    """Start the ranks of a cell, in one process group, with the variables that torchrun sets."""
    name, size = f"local-{os.getpid()}", cell.world_size
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    log = paths.logs / f"{cell.array}-{cell.index}-{name}.log"
    command = [launch.python, "-u", "-m", "gnnhpc", "run", "--manifest", str(paths.manifest)]
    command += ["--array", cell.array, "--index", str(cell.index)]
    command += ["--live"] if launch.live else []
    cpus = launch.site.cpus_per_task
    variables = search_path_for_children(*(() if launch.live else (paths.code,)))
    variables |= {each: str(cpus) for each in ("GNNHPC_THREADS", "OMP_NUM_THREADS")}
    variables[SITE_VARIABLE] = json.dumps({"name": launch.site_name, "cpus_per_task": cpus})
    variables["TORCHELASTIC_RUN_ID"] = f"{name}-{cell.array}-{cell.index}"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as stream:
            for rank in range(size):
                process = subprocess.Popen(
                    command,
                    env=local_rank_variables(rank, size, port) | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    process_group=ranks[0].pid if ranks else 0,
                )
                ranks.append(process)
    except OSError as error:
        # A disk that fills up while a file is written names no file.
        place = error.filename or paths.root
        raise GnnhpcError(
            f"{cell.array} {cell.index}: cannot be started, {place}: {error.strerror or error}; "
            f"the others: {as_typed('jobs', 'rerun')} {paths.root} --missing"
        ) from None


def _stop(ranks: Ranks) -> None:
    """Ask the ranks to save and end, and kill them if they do not, with what they have started."""
    deadline, sent = time.monotonic() + _GRACE_S, None
    while any(rank.poll() is None for rank in ranks):
        number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
        if number != sent:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks[0].pid, number)
            sent = number
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that the ranks are stopped first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other local run measures on this machine, and keep others from it."""
    from filelock import FileLock, Timeout

    name = os.environ.get(LOCK_VARIABLE, str(Path(tempfile.gettempdir()) / "gnnhpc-local.lock"))
    if not name:
        yield
        return
    lock = FileLock(name, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print("waits for another local run on this machine", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

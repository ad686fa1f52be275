"""Running cells on this machine through submitit's local executor, one at a time by default.

Measurements that share a machine must not overlap, so the supervisor waits for a cell's ranks to
end before it starts the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import submitit

from gnnhpc.records.paths import RunPaths
from gnnhpc.spec.manifest import Cell
from jobs.cluster.array_script import HOME
from jobs.cluster.site import Site
from jobs.cluster.slurm_submit import private_folder
from jobs.folder import attempt_files as attempts
from jobs.task import CellTask

_POLL_S = 0.1
_GRACE_S = 20.0
_WEEK_MIN = 7 * 24 * 60


@dataclass(frozen=True)
class Work:
    """One cell to run, with what the executor needs to know of it."""

    array: str
    index: int
    cell: str
    ranks: int
    gpu: bool

    @classmethod
    def of(cls, cell: Cell) -> Work:
        experiment = cell.experiment
        gpu = experiment.device == "gpu"
        return cls(cell.array, cell.index, cell.id, experiment.layout.world_size, gpu)


@dataclass(frozen=True)
class Terms:
    """How this machine is to be used."""

    threads: int | None
    """Threads a rank; None leaves them to $GNNHPC_THREADS."""
    time_min: int
    signal_s: int
    parallel: int
    """Cells that run at once."""

    @classmethod
    def of(cls, site: Site) -> Terms:
        given = site.model_fields_set
        return cls(
            threads=None
            if "cpus_per_task" not in given and os.environ.get("GNNHPC_THREADS")
            else site.cpus_per_task,
            time_min=site.time_min if "time" in given else _WEEK_MIN,
            signal_s=site.signal,
            parallel=site.max_parallel or 1,
        )


@dataclass(frozen=True)
class Ended:
    """How one local job ended; `line` says it in words."""

    work: Work
    done: bool
    line: str
    seconds: float


class Report(Protocol):
    """Whoever watches a local run."""

    def expect(self, total: int) -> None: ...

    def started(self, work: Work) -> None: ...

    def ended(self, ended: Ended) -> None: ...

    def finish(self) -> None: ...


def run_cells(paths: RunPaths, work: Sequence[Work], terms: Terms, report: Report) -> list[Ended]:
    """Run every cell, in order; a failed one does not stop the others.

    On SIGINT or SIGTERM the running ranks end first, then KeyboardInterrupt is raised.
    """
    waiting = list(reversed(work))
    running: list[tuple[Work, submitit.Job[int], float, int]] = []
    ended: list[Ended] = []
    report.expect(len(work))
    with _environment(terms), _terminable():
        try:
            while waiting or running:
                while waiting and len(running) < terms.parallel:
                    item = waiting.pop()
                    before = _newest(paths, item)
                    running.append((item, _start(paths, item, terms), time.monotonic(), before))
                    report.started(item)
                for entry in [entry for entry in running if entry[1].done()]:
                    running.remove(entry)
                    item, job, start, before = entry
                    _keep_log(paths, item, job)
                    ended.append(_conclude(paths, item, before, time.monotonic() - start))
                    report.ended(ended[-1])
                time.sleep(_POLL_S)
        except BaseException:
            _stop([job for _, job, _, _ in running])
            raise
        finally:
            report.finish()
    return ended


def supervise_apart(paths: RunPaths) -> subprocess.Popen[bytes]:
    """A process that runs these cells after this one has ended; it waits for `release`."""
    log = paths.logs / f"supervisor-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "jobs.actions.supervise", str(paths.root)],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": _search_path()},
        )


def release(process: subprocess.Popen[bytes], work: Sequence[Work], terms: Terms) -> None:
    """Tell a supervisor what to do; before that it has done nothing."""
    assert process.stdin is not None
    order = {"work": [asdict(item) for item in work], "terms": asdict(terms)}
    process.stdin.write(json.dumps(order).encode())
    process.stdin.close()


def _start(paths: RunPaths, work: Work, terms: Terms) -> submitit.Job[int]:
    executor = submitit.LocalExecutor(folder=private_folder(paths))
    executor.update_parameters(
        timeout_min=terms.time_min,
        signal_delay_s=terms.signal_s,
        tasks_per_node=work.ranks,
        stderr_to_stdout=True,
        **_gpus(work),
    )
    return executor.submit(CellTask(str(paths.manifest), work.array, work.index))


def _gpus(work: Work) -> dict[str, object]:
    """One GPU a rank, of those this user left visible."""
    if not work.gpu:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = tuple(int(part) for part in visible.split(",") if part.strip().isdigit())
    if numbers:
        return {"gpus_per_node": min(work.ranks, len(numbers)), "visible_gpus": numbers}
    return {"gpus_per_node": work.ranks}


def _newest(paths: RunPaths, work: Work) -> int:
    existing = paths.cell(work.cell).attempts()
    return existing[-1].number if existing else 0


def _conclude(paths: RunPaths, work: Work, before: int, seconds: float) -> Ended:
    newest = _newest(paths, work)
    if newest == before:
        line = f"failed before it had an attempt: see logs/{work.array}-{work.index}-*.log"
        return Ended(work, False, line, seconds)
    attempt = paths.cell(work.cell).attempt(newest)
    outcome = attempts.read_outcome(attempt)
    if outcome is None:
        cause = attempts.read_cause(attempt, work.ranks)
        return Ended(work, False, f"failed: {cause or 'the ranks ended without a result'}", seconds)
    line = outcome.status
    if outcome.cause:
        line += f": {outcome.cause}"
    if outcome.flags:
        line += f" (flags: {', '.join(outcome.flags)})"
    return Ended(work, outcome.status == "done", line, seconds)


def _keep_log(paths: RunPaths, work: Work, job: submitit.Job[int]) -> None:
    """What the ranks printed before they had their own logs, in the run's logs folder."""
    target = paths.logs / f"{work.array}-{work.index}-local-{job.job_id}.log"
    paths.logs.mkdir(exist_ok=True)
    with target.open("w", encoding="utf-8") as stream:
        for rank in range(work.ranks):
            path: Path = job.task(rank).paths.stdout
            with contextlib.suppress(OSError):
                text = path.read_text(encoding="utf-8", errors="replace")
                stream.writelines(f"{rank}: {line}\n" for line in text.splitlines())


def _stop(jobs: Sequence[submitit.Job[int]]) -> None:
    """Ranks are asked to save and end, and ended if they do not."""
    for job in jobs:
        # submitit names a local job after its controller's process, which passes TERM on.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(not job.done() for job in jobs):
        if time.monotonic() > deadline:
            for job in jobs:
                job.cancel()
        time.sleep(_POLL_S)


def _search_path() -> str:
    """Jobs import this package from where it is, however they are started."""
    known = os.environ.get("PYTHONPATH")
    return f"{HOME}{os.pathsep}{known}" if known else str(HOME)


@contextlib.contextmanager
def _environment(terms: Terms) -> Iterator[None]:
    """What ranks started here find in their environment."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = _search_path()
    if terms.threads is not None:
        os.environ["GNNHPC_THREADS"] = str(terms.threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["GNNHPC_THREADS"]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a local run as Ctrl-C does: its ranks first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

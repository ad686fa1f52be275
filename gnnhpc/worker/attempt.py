"""This rank's attempt: what its result says, and how a failure or a hang ends it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gnnhpc.core.errors import EXIT_FAILED, GnnhpcError
from gnnhpc.core.provenance import code_digest, command_line, machine, versions
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.slurm_job import OtherJobs, other_jobs
from gnnhpc.experiment.manifest import Cell
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.choose_resume_point import EarlierAttempts, ResumePoint
from gnnhpc.records.code_snapshot import CodeOrigin
from gnnhpc.records.failures import (
    ASKED_TO_STOP,
    find_first_failure,
    line_of_user,
    one_line,
    utc_now,
    write_failure,
)
from gnnhpc.records.result_file import Result, write_result_once
from gnnhpc.records.schema import Check, Failure, Status
from gnnhpc.validation.verdicts import WrongRunError

if TYPE_CHECKING:
    from gnnhpc.training.loop import Position


@dataclass
class Attempt:
    """What the rank knows of its attempt; it is filled in as the rank starts and runs."""

    cell: Cell
    code: CodeOrigin = field(default_factory=CodeOrigin)
    environment: Environment = field(default_factory=read_environment)
    started_at: str = field(default_factory=utc_now)
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the start, by name."""
    paths: AttemptPaths | None = None
    """None until the attempt's folder exists."""
    resumed: ResumePoint | None = None
    """The checkpoint at which this attempt begins, if any; known once all ranks are set up."""
    hosts: list[str] = field(default_factory=list)
    balance: list[int] | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """What each process computes with (`rank_metadata`); empty until all are set up."""
    other_jobs: dict[str, OtherJobs | None] = field(default_factory=dict)
    """Other jobs on the nodes of this one, at its start and end; rank 0 asks Slurm for them."""
    position: Position | None = None
    """Phase and step of the loop, once it has begun."""
    launcher_stderr: int | None = None
    """Where the launcher listens, once this process prints into its log."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def known_paths(self) -> AttemptPaths:
        """The paths, where the attempt's folder must exist by now."""
        assert self.paths is not None, "the attempt has no folder yet"
        return self.paths

    @property
    def earlier(self) -> EarlierAttempts:
        """What this attempt takes over from those before it."""
        return self.resumed.earlier if self.resumed else EarlierAttempts()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Around a part of the start."""
        began_s = time.perf_counter()
        yield
        self.startup_s[name] = time.perf_counter() - began_s

    def read_other_jobs(self, when: Literal["start", "end"]) -> None:
        """Ask Slurm, where this is one of its jobs, which others are on the same nodes."""
        if self.environment.job_id is not None:
            self.other_jobs[when] = other_jobs(self.environment)

    def print_into(self, path: Path) -> None:
        """Append stdout and stderr to `path` from now on; GnnhpcError if it cannot be written."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise GnnhpcError(f"{path}: cannot be written ({error.strerror})") from None
        self.launcher_stderr = os.dup(2)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def print_to_both(self, line: str) -> None:
        """Print a line to the log and to the launcher's stderr."""
        # The log may be on the disk that is full.
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
        if self.launcher_stderr is not None:
            os.write(self.launcher_stderr, (line + "\n").encode())

    def result(
        self, status: Status, *, train_steps: int = 0, test_steps: int = 0, **fields: Any
    ) -> Result:
        """The result with the fields that all have, however the attempt ended, and others."""
        experiment = self.cell.experiment
        layout = experiment.layout
        return Result(
            cell=self.cell.id,
            attempt=self.known_paths.number,
            status=status,
            experiment=experiment.model_dump(mode="json"),
            layout={
                "name": str(layout),
                "replicas": layout.replicas,
                "stages": layout.stages,
                "world_size": experiment.process_layout.world_size,
                "balance": self.balance,
                "schedule": experiment.schedule,
                "virtual_stages": experiment.virtual_stages,
            },
            provenance={
                "commit": self.code.commit(),
                "code": code_digest(),
                "code_from": self.code.kind,
                "versions": versions(),
                "hosts": self.hosts,
                "machine": machine(),
                "threads": self.environment.cpus,
                "implementation": self.ranks[0]["implementation"] if self.ranks else None,
                "ranks": self.ranks,
                "site": self.environment.site,
                "slurm": dict(self.environment.slurm),
                "other_jobs": {
                    when: None if jobs is None else asdict(jobs)
                    for when, jobs in self.other_jobs.items()
                },
                "command": command_line(),
                "startup_s": {name: round(s, 3) for name, s in self.startup_s.items()},
            },
            started_at=self.started_at,
            ended_at=utc_now(),
            train_steps=train_steps,
            test_steps=test_steps,
            resumed_from=self.resumed.as_record if self.resumed else None,
            **fields,
        )

    def failure(self, error: str) -> Failure:
        """A failure of this rank, where it is now."""
        step, phase = (self.position.step, self.position.phase) if self.position else (None, None)
        rank, host = self.environment.rank, self.environment.host
        return Failure(rank, host, step, phase, error, utc_now())

    def fail(self, error: Exception) -> None:
        """Report an error of this rank: in its log, in its failure file, in the result."""
        text = str(error) if isinstance(error, GnnhpcError) else one_line(error)
        is_custom = isinstance(self.cell.experiment.model, CustomModel)
        if is_custom and (place := line_of_user(error)):
            text += f" ({place})"
        self._report(self.failure(text), error.check if isinstance(error, WrongRunError) else None)

    def exit_after_signal(self, signal_name: str) -> NoReturn:
        """End where a signal asked this rank to stop, and the step did not end in time."""
        self._report_and_exit(self.failure(f"{signal_name} {ASKED_TO_STOP}"))

    def exit_after_hang(self, rank: int, why: str) -> NoReturn:
        """The watchdog found a hang; the main thread waits in a collective that cannot end."""
        host = self.hosts[rank] if rank < len(self.hosts) else "unknown host"
        self._report_and_exit(replace(self.failure(why), rank=rank, host=host))

    def _report_and_exit(self, failure: Failure) -> NoReturn:
        """End this process at once; the other ranks may wait in any collective."""
        self._report(failure)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)

    def _report(self, failure: Failure, wrong: Check | None = None) -> None:
        """`wrong` is the check that has ended the run, if one has."""
        line = f"{self.cell.id}: rank {failure.rank} on {failure.host}: {failure.error}"
        self.print_to_both(line)
        if self.paths is None:
            return
        # The watchdog and the main thread may both fail.
        with self._lock:
            try:
                self._write_failed_result(self.paths, failure, wrong)
            except OSError as error:
                self.print_to_both(f"{self.paths.result}: cannot be written ({error.strerror})")

    def _write_failed_result(
        self, paths: AttemptPaths, failure: Failure, wrong: Check | None
    ) -> None:
        write_failure(paths, failure, by=self.environment.rank)
        size = self.cell.experiment.process_layout.world_size
        first = find_first_failure(paths, size, self.hosts, failure)
        steps = first.step if first.phase == "train" and first.step is not None else 0
        audit = []
        if wrong is not None:
            # Nobody goes on from its earlier checkpoints either.
            detail = wrong.detail if first.rank == failure.rank else first.error
            audit = [replace(wrong, detail=detail)]
        write_result_once(
            paths, self.result("failed", failure=first, train_steps=steps, audit=audit)
        )

"""How this rank's attempt comes out, whichever way it does: a result, a failure, a silence."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gnnhpc.core.errors import EXIT_FAILED, GnnhpcError
from gnnhpc.ranks.environment import Environment
from gnnhpc.records.failures import conclude, first_cause, leave_failure, one_line, utc_now
from gnnhpc.records.paths import AttemptPaths
from gnnhpc.records.provenance import code_digest, command_line, git_commit, machine, versions
from gnnhpc.records.schema import Failure, Result, Status
from gnnhpc.spec.manifest import Cell

if TYPE_CHECKING:
    from gnnhpc.train.loop import Progress


@dataclass
class Outcome:
    """Filled in as the rank learns: its attempt, its peers' hosts, how far it is."""

    cell: Cell
    environment: Environment
    started_at: str
    startup_s: dict[str, float]
    attempt: AttemptPaths | None = None
    hosts: list[str] = field(default_factory=list)
    balance: list[int] | None = None
    implementation: str | None = None
    progress: Progress | None = None
    _stderr: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def known_attempt(self) -> AttemptPaths:
        assert self.attempt is not None, "no attempt is claimed yet"
        return self.attempt

    def result(self, status: Status) -> Result:
        """What every result says, however the attempt ended."""
        experiment = self.cell.experiment
        layout = experiment.layout
        return Result(
            cell=self.cell.id,
            attempt=self.known_attempt.number,
            status=status,
            experiment=experiment.model_dump(mode="json"),
            layout={
                "name": str(layout),
                "replicas": layout.replicas,
                "stages": layout.stages,
                "world_size": layout.world_size,
                "balance": self.balance,
                "schedule": experiment.schedule,
            },
            provenance={
                "commit": git_commit(),
                "code": code_digest(),
                "versions": versions(),
                "hosts": self.hosts,
                "machine": machine(),
                "threads": self.environment.cpus,
                "implementation": self.implementation,
                "launcher": self.environment.launcher,
                "slurm": dict(self.environment.slurm),
                "command": command_line(),
                "startup_s": {name: round(s, 3) for name, s in self.startup_s.items()},
            },
            started_at=self.started_at,
            ended_at=utc_now(),
            train_steps=0,
            test_steps=0,
            samples_per_step=0,
        )

    def fail(self, error: BaseException) -> None:
        """Say it in this rank's log first, leave it beside the records, then conclude."""
        self.blame(
            Failure(
                rank=self.environment.rank,
                host=self.environment.host,
                step=self.progress.step if self.progress else None,
                phase=self.progress.phase if self.progress else None,
                error=str(error) if isinstance(error, GnnhpcError) else one_line(error),
                at=utc_now(),
            )
        )

    def blame(self, failure: Failure) -> None:
        self.say(f"{self.cell.id}: rank {failure.rank} on {failure.host}: {failure.error}")
        if self.attempt is None:
            return
        with self._lock:
            try:
                self._conclude(self.attempt, failure)
            except OSError as error:
                self.say(f"{self.attempt.result}: cannot be written ({error.strerror})")

    def _conclude(self, attempt: AttemptPaths, failure: Failure) -> None:
        leave_failure(attempt, failure, by=self.environment.rank)
        size = self.cell.experiment.layout.world_size
        cause = first_cause(attempt, size, self.hosts, failure)
        steps = cause.step if cause.phase == "train" and cause.step is not None else 0
        conclude(attempt, replace(self.result("failed"), failure=cause, train_steps=steps))

    def ended_by(self, signal_name: str) -> None:
        """Told to end, and the loop did not come to the end of its step in time."""
        self.fail(GnnhpcError(f"told to end by {signal_name} and could not finish the step"))
        self._exit()

    def hung(self, rank: int, why: str) -> None:
        """The watchdog's verdict; the main thread waits for what will not come."""
        progress = self.progress
        self.blame(
            Failure(
                rank=rank,
                host=self.hosts[rank] if rank < len(self.hosts) else "unknown host",
                step=progress.step if progress else None,
                phase=progress.phase if progress else None,
                error=why,
                at=utc_now(),
            )
        )
        self._exit()

    def keep_stderr(self) -> None:
        """Remember where the launcher listens, before this rank's words go to its own log."""
        self._stderr = os.dup(2)

    def say(self, line: str) -> None:
        # The log may be on the disk that is full.
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
        if self._stderr is not None:
            os.write(self._stderr, (line + "\n").encode())

    @staticmethod
    def _exit() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)

"""One rank of one cell, from its environment to its records; rank 0 writes the result."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnhpc.attempt import conclude, first_cause, leave_failure, one_line, utc_now
from gnnhpc.environment import Environment, check_world_size, read_environment
from gnnhpc.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError, InputError
from gnnhpc.manifest import Cell, find_cell
from gnnhpc.paths import AttemptPaths, RunPaths
from gnnhpc.provenance import (
    code_digest,
    command_line,
    git_commit,
    machine,
    seconds_since_process_start,
    versions,
)
from gnnhpc.records import Failure, Header, Result
from gnnhpc.signals import Signals, listening

if TYPE_CHECKING:
    from gnnhpc.assemble import Parts
    from gnnhpc.mesh import Mesh
    from gnnhpc.train import Progress, Trainer


def run_cell(manifest: Path, array: str, index: int) -> int:
    """Run the cell that an array task means, as the rank this process is; an exit status."""
    cell = find_cell(manifest, array, index)
    return Worker(cell, RunPaths(manifest.resolve().parent)).run()


@dataclass
class Worker:
    """What one rank knows while it runs a cell; each phase of `run` fills in more of it."""

    cell: Cell
    run_paths: RunPaths
    environment: Environment = field(default_factory=read_environment)
    started_at: str = field(default_factory=utc_now)
    startup_s: dict[str, float] = field(default_factory=dict)
    attempt: AttemptPaths | None = None
    hosts: list[str] = field(default_factory=list)
    progress: Progress | None = None
    _concluding: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> int:
        """Raises nothing a user could mend: such errors are told in one line, with their status."""
        check_world_size(self.environment, self.cell.experiment.layout)
        with listening(self._ended) as signals:
            try:
                return self._run(signals)
            except InputError as error:
                self._fail(error)
                return EXIT_INPUT
            except Exception as error:
                self._fail(error)
                if not isinstance(error, GnnhpcError):
                    import traceback

                    traceback.print_exc()
                return EXIT_FAILED

    def _run(self, signals: Signals) -> int:
        if self.environment.rank == 0:
            self.attempt = self.run_paths.cell(self.cell.id).claim_attempt()
        self.startup_s["before"] = seconds_since_process_start()
        mesh = self._join()
        from gnnhpc.mesh import leave

        parts = self._assemble(mesh)
        trainer = self._train(mesh, parts, signals)
        result = self._result(mesh, parts, trainer)
        if result is not None and self.attempt is not None:
            conclude(self.attempt, result)
            self._say(f"{self.cell.id}: done, {len(result.flags)} flags {result.flags}")
        mesh.barrier()
        leave(mesh)
        return EXIT_DONE

    def _join(self) -> Mesh:
        """Import torch, meet the other ranks, agree on attempt, code and cell."""
        with self._phase("imports"):
            import torch

            from gnnhpc import train as _  # noqa: F401 - the heavy imports, timed here
            from gnnhpc.assemble import choose_device
            from gnnhpc.mesh import join

            torch.set_num_threads(self.environment.cpus)
        with self._phase("rendezvous"):
            device = choose_device(self.cell.experiment, self.environment)
            mesh = join(self.environment, self.cell.experiment.layout, device)
            known = mesh.share(
                {
                    "attempt": self.attempt.number if self.attempt else None,
                    "code": code_digest(),
                    "cell": self.cell.id,
                    "host": self.environment.host,
                }
            )
        self.hosts = [entry["host"] for entry in known]
        self.attempt = self.run_paths.cell(self.cell.id).attempt(known[0]["attempt"])
        self._redirect()
        for rank, entry in enumerate(known):
            for what in ("code", "cell"):
                if entry[what] != known[0][what]:
                    raise GnnhpcError(
                        f"rank {rank} on {entry['host']} runs other {what} ({entry[what]}) than "
                        f"rank 0 on {known[0]['host']} ({known[0][what]})"
                    )
        return mesh

    def _assemble(self, mesh: Mesh) -> Parts:
        from gnnhpc.assemble import assemble
        from gnnhpc.data.roots import data_root

        with self._phase("build"):
            parts = assemble(self.cell.experiment, mesh, data_root(self.cell.data_root))
            mesh.barrier()
        self.startup_s["total"] = seconds_since_process_start()
        return parts

    def _train(self, mesh: Mesh, parts: Parts, signals: Signals) -> Trainer:
        from gnnhpc.audit import Observations
        from gnnhpc.recorder import Recorder
        from gnnhpc.report_progress import progress_reporter
        from gnnhpc.train import Trainer, build_optimizer

        assert self.attempt is not None
        experiment = self.cell.experiment
        observations = Observations(mesh.layout, mesh.rank, parts.workload.total_samples)
        with (
            Recorder(self.attempt.records(mesh.rank), self._header(mesh, parts)) as recorder,
            progress_reporter(experiment, mesh.rank) as report,
        ):
            trainer = Trainer(
                experiment=experiment,
                outlines=parts.outlines,
                mesh=mesh,
                stage=parts.stage,
                engine=parts.engine,
                workload=parts.workload,
                optimizer=build_optimizer(experiment, parts.stage),
                timer=parts.timer,
                recorder=recorder,
                observations=observations,
                stop_asked=signals.asked,
                after_step=lambda step: None,
                report=report,
            )
            self.progress = trainer.progress
            trainer.run()
        return trainer

    def _header(self, mesh: Mesh, parts: Parts) -> Header:
        import torch

        env = self.environment
        assert self.attempt is not None
        return Header(
            cell=self.cell.id,
            attempt=self.attempt.number,
            rank=mesh.rank,
            replica=mesh.replica,
            stage=mesh.stage,
            world_size=mesh.layout.world_size,
            host=env.host,
            pid=os.getpid(),
            cpu_model=machine()["cpu_model"],
            cpus=len(os.sched_getaffinity(0)),
            threads=torch.get_num_threads(),
            device=str(mesh.device),
            layers=[layer.name for layer in parts.stage.outlines],
            parameters=sum(p.numel() for p in parts.stage.parameters()),
            started_at=self.started_at,
            slurm=dict(env.slurm),
            versions=versions(),
            startup_s={name: round(s, 3) for name, s in self.startup_s.items()},
        )

    def _result(self, mesh: Mesh, parts: Parts, trainer: Trainer) -> Result | None:
        """Gather every rank's findings; rank 0 judges them."""
        from gnnhpc.audit import gather_findings, judge

        findings = gather_findings(mesh, parts, trainer.observations, self.environment)
        if mesh.rank != 0:
            return None
        assert self.attempt is not None
        experiment = self.cell.experiment
        graph = parts.workload.graph_facts()
        return Result(
            cell=self.cell.id,
            attempt=self.attempt.number,
            status="done",
            experiment=experiment.model_dump(mode="json"),
            layout=self._layout([len(part) for part in parts.planned]),
            provenance=self._provenance(),
            started_at=self.started_at,
            ended_at=utc_now(),
            train_steps=experiment.train_steps,
            test_steps=trainer.tested,
            samples_per_step=sum(f.samples for f in findings if mesh.layout.stage_of(f.rank) == 0),
            final=trainer.final,
            graph=graph,
            audit=judge(findings, parts.outlines, mesh.layout, parts.planned, graph),
        )

    def _layout(self, balance: list[int] | None) -> dict[str, Any]:
        layout = self.cell.experiment.layout
        return {
            "name": str(layout),
            "replicas": layout.replicas,
            "stages": layout.stages,
            "world_size": layout.world_size,
            "balance": balance,
            "schedule": self.cell.experiment.schedule,
        }

    def _provenance(self) -> dict[str, Any]:
        return {
            "commit": git_commit(),
            "code": code_digest(),
            "versions": versions(),
            "hosts": self.hosts,
            "machine": machine(),
            "threads": self.environment.cpus,
            "launcher": self.environment.launcher,
            "slurm": dict(self.environment.slurm),
            "command": command_line(),
            "startup_s": {name: round(s, 3) for name, s in self.startup_s.items()},
        }

    def _fail(self, error: BaseException) -> None:
        """Say it in this rank's log first, then leave it for whoever concludes."""
        self._say(f"{self.cell.id}: rank {self.environment.rank}: {one_line(error)}")
        if self.attempt is None:
            return
        failure = Failure(
            rank=self.environment.rank,
            host=self.environment.host,
            step=self.progress.step if self.progress else None,
            phase=self.progress.phase if self.progress else None,
            error=str(error) if isinstance(error, GnnhpcError) else one_line(error),
            at=utc_now(),
        )
        leave_failure(self.attempt, failure)
        self._conclude_failure(failure)

    def _conclude_failure(self, own: Failure) -> None:
        with self._concluding:
            assert self.attempt is not None
            experiment = self.cell.experiment
            cause = first_cause(self.attempt, experiment.layout.world_size, self.hosts, own)
            result = Result(
                cell=self.cell.id,
                attempt=self.attempt.number,
                status="failed",
                experiment=experiment.model_dump(mode="json"),
                layout=self._layout(None),
                provenance=self._provenance(),
                started_at=self.started_at,
                ended_at=utc_now(),
                train_steps=cause.step or 0 if cause.phase == "train" else 0,
                test_steps=0,
                samples_per_step=0,
                failure=cause,
            )
            conclude(self.attempt, result)

    def _ended(self, signal_name: str) -> None:
        """Told to end and the loop did not come to the end of its step: conclude and go."""
        self._fail(GnnhpcError(f"told to end by {signal_name} and could not finish the step"))
        sys.stderr.flush()
        os._exit(EXIT_FAILED)

    def _phase(self, name: str) -> _Phase:
        return _Phase(self.startup_s, name)

    def _redirect(self) -> None:
        """From here on this rank's words go to its own log; a process alone keeps its terminal."""
        if self.environment.launcher == "alone" and sys.stderr.isatty():
            return
        assert self.attempt is not None
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = os.open(
            self.attempt.log(self.environment.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        if self.environment.launcher != "alone":
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        os.close(descriptor)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class _Phase:
    """Times one part of starting."""

    def __init__(self, into: dict[str, float], name: str) -> None:
        self._into = into
        self._name = name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into[self._name] = time.perf_counter() - self._start

"""One rank of one cell, from its environment to its records; rank 0 writes the result."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError, InputError
from gnnhpc.ranks.allocator import give_large_blocks_their_own_pages
from gnnhpc.ranks.environment import Environment, check_world_size, read_environment
from gnnhpc.ranks.requeue import requeue_if_asked
from gnnhpc.ranks.signals import Signals, listening
from gnnhpc.records.checkpoint_files import Origin, find_origin
from gnnhpc.records.failures import conclude, utc_now
from gnnhpc.records.paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.records.provenance import code_digest, cpu_model, seconds_since_process_start, versions
from gnnhpc.records.schema import EventRecord, Header
from gnnhpc.run.attempt_end import Outcome
from gnnhpc.spec.manifest import Cell, find_cell
from gnnhpc.spec.own_models import load_model

if TYPE_CHECKING:
    from gnnhpc.check.observe import Findings, Observations
    from gnnhpc.ranks.mesh import Mesh
    from gnnhpc.records.writer import Recorder
    from gnnhpc.train.assemble import Parts
    from gnnhpc.train.loop import Trainer


def run_cell(manifest: Path, array: str, index: int) -> int:
    """Run the cell that an array task means, as the rank this process is; an exit status.

    Raises InputError for a manifest, index, environment or world size that does not fit.
    """
    cell = find_cell(manifest, array, index)
    return Worker(cell, RunPaths(manifest.resolve().parent)).run()


def _claim(cell_paths: CellPaths) -> AttemptPaths:
    """The next attempt's folder; GnnhpcError where the run folder cannot be written."""
    try:
        return cell_paths.claim_attempt()
    except OSError as error:
        raise GnnhpcError(f"{cell_paths.root}: cannot be written ({error.strerror})") from None


@dataclass
class Worker:
    """What one rank knows while it runs a cell; each phase of `run` fills in more of it."""

    cell: Cell
    run_paths: RunPaths
    environment: Environment = field(default_factory=read_environment)
    started_at: str = field(default_factory=utc_now)
    startup_s: dict[str, float] = field(default_factory=dict)
    origin: Origin | None = None
    """The checkpoint this attempt goes on from."""
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.cell, self.environment, self.started_at, self.startup_s)

    def run(self) -> int:
        """Errors of this cell are told in one line and left in the attempt, never raised."""
        check_world_size(self.environment, self.cell.experiment.layout)
        give_large_blocks_their_own_pages()
        with listening(self.outcome.ended_by) as signals:
            try:
                return self._run(signals)
            except InputError as error:
                self.outcome.fail(error)
                return EXIT_INPUT
            except Exception as error:
                self.outcome.fail(error)
                if not isinstance(error, GnnhpcError):
                    import traceback

                    traceback.print_exc()
                return EXIT_FAILED

    def _run(self, signals: Signals) -> int:
        load_model(self.cell.experiment, self.run_paths)
        if self.environment.rank == 0:
            cell_paths = self.run_paths.cell(self.cell.id)
            self.outcome.attempt = _claim(cell_paths)
            self.origin = find_origin(cell_paths, self.outcome.attempt)
        self.startup_s["before"] = seconds_since_process_start()
        mesh = self._join()
        parts = self._assemble(mesh)
        status = self._train(mesh, parts, signals)
        from gnnhpc.ranks.mesh import leave

        mesh.barrier()
        leave(mesh)
        return status

    def _join(self) -> Mesh:
        """Import torch, meet the other ranks, agree on attempt, code and cell."""
        with self._phase("imports"), _uncollected():
            import torch

            from gnnhpc.ranks.mesh import join
            from gnnhpc.train import loop as _  # noqa: F401 - the heavy imports, timed here
            from gnnhpc.train.assemble import choose_device

            torch.set_num_threads(self.environment.cpus)
        with self._phase("rendezvous"):
            device = choose_device(self.cell.experiment, self.environment)
            mesh = join(self.environment, self.cell.experiment.layout, device)
            attempt = self.outcome.attempt
            known = mesh.share(
                {
                    "attempt": attempt.number if attempt else None,
                    "origin": self.origin,
                    "code": code_digest(),
                    "cell": self.cell.id,
                    "host": self.environment.host,
                }
            )
        self.outcome.hosts = [entry["host"] for entry in known]
        self.origin = known[0]["origin"]
        self.outcome.attempt = self.run_paths.cell(self.cell.id).attempt(known[0]["attempt"])
        self._redirect(self.outcome.attempt)
        for rank, entry in enumerate(known):
            for what in ("code", "cell"):
                if entry[what] != known[0][what]:
                    raise GnnhpcError(
                        f"rank {rank} on {entry['host']} runs other {what} ({entry[what]}) than "
                        f"rank 0 on {known[0]['host']} ({known[0][what]})"
                    )
        return mesh

    def _assemble(self, mesh: Mesh) -> Parts:
        from gnnhpc.data.roots import data_root
        from gnnhpc.train.assemble import assemble

        with self._phase("build"):
            parts = assemble(self.cell.experiment, mesh, data_root(self.cell.data_root))
            self.outcome.balance = [len(part) for part in parts.planned]
            self.outcome.implementation = parts.implementation
            mesh.barrier()
        self.startup_s["total"] = seconds_since_process_start()
        return parts

    def _train(self, mesh: Mesh, parts: Parts, signals: Signals) -> int:
        """Train and test, recording; then judge and conclude, or leave a checkpoint and go."""
        from gnnhpc.check.observe import Observations
        from gnnhpc.ranks.watchdog import watching
        from gnnhpc.records.writer import Recorder
        from gnnhpc.train.loop import Stopped
        from gnnhpc.train.progress import progress_reporter

        attempt = self.outcome.attempt
        assert attempt is not None
        start = self.origin.step if self.origin else 0
        observations = Observations(mesh.layout, mesh.rank, parts.batches.total_samples)
        with (
            Recorder(attempt.records(mesh.rank), self._header(mesh, parts)) as recorder,
            progress_reporter(self.cell.experiment, mesh.rank, start) as report,
            watching(mesh, parts.timer, self.outcome.hung),
        ):
            trainer = self._trainer(mesh, parts, recorder, observations)
            trainer.stop_asked = signals.asked
            trainer.report = report
            self.outcome.progress = trainer.progress
            try:
                trainer.run(start)
            except Stopped as stopped:
                self._save(mesh, parts, trainer, stopped.step)
                self._conclude_interrupted(mesh, trainer, signals, stopped.step)
                return EXIT_FAILED
            self._conclude_done(mesh, parts, trainer, observations)
        return EXIT_DONE

    def _trainer(
        self, mesh: Mesh, parts: Parts, recorder: Recorder, observations: Observations
    ) -> Trainer:
        from gnnhpc.train.loop import Trainer

        experiment = self.cell.experiment
        trainer = Trainer(
            experiment=experiment,
            mesh=mesh,
            stage=parts.stage,
            engine=parts.engine,
            batches=parts.batches,
            task=parts.task,
            optimizer=parts.optimizer,
            timer=parts.timer,
            recorder=recorder,
            observer=observations,
        )
        every = experiment.checkpoint_every
        if every:

            def checkpoint(done: int) -> None:
                if done % every == 0 and done < experiment.train_steps:
                    self._save(mesh, parts, trainer, done)

            trainer.after_step = checkpoint
        if self.origin is not None:
            from gnnhpc.train.checkpoint import load

            with parts.timer.storage("reading a checkpoint"):
                load(self.origin.path, mesh, parts.stage, trainer.optimizer)
            trainer.tested = self.origin.tested
            recorder.write(EventRecord("resumed", 0.0, self.origin.describe()))
        return trainer

    def _save(self, mesh: Mesh, parts: Parts, trainer: Trainer, step: int) -> None:
        from gnnhpc.train.checkpoint import save

        assert self.outcome.attempt is not None
        began = time.perf_counter()
        with parts.timer.storage("writing a checkpoint"):
            save(
                self.outcome.attempt,
                mesh,
                parts.stage,
                trainer.optimizer,
                cell=self.cell.id,
                step=step,
                tested=trainer.tested,
            )
        seconds = time.perf_counter() - began
        trainer.recorder.write(EventRecord("checkpoint", seconds, {"step": step}))

    def _conclude_done(
        self, mesh: Mesh, parts: Parts, trainer: Trainer, observations: Observations
    ) -> None:
        """Gather every rank's findings; rank 0 judges them and writes the result."""
        from gnnhpc.check.observe import gather_findings

        findings = gather_findings(mesh, parts, observations, self.environment)
        with parts.timer.storage("writing the result"):
            if mesh.rank == 0:
                self._judge(mesh, parts, trainer, findings)
            mesh.barrier()

    def _judge(
        self, mesh: Mesh, parts: Parts, trainer: Trainer, findings: Sequence[Findings]
    ) -> None:
        from gnnhpc.check.audit import judge

        graph = parts.batches.graph_facts()
        firsts = [f for f in findings if mesh.layout.stage_of(f.rank) == 0]
        result = replace(
            self.outcome.result("done"),
            train_steps=self.cell.experiment.train_steps,
            test_steps=trainer.tested,
            samples_per_step=sum(f.samples for f in firsts),
            final=trainer.final,
            graph=graph,
            audit=judge(findings, parts.outlines, mesh.layout, parts.planned, graph),
            resumed_from=self.origin.describe() if self.origin else None,
        )
        self._conclude(result.flags, conclude(self.outcome.known_attempt, result))

    def _conclude(self, flags: list[str], first: bool) -> None:
        flagged = f", flagged {', '.join(flags)}" if flags else ""
        if first:
            print(f"{self.cell.id}: done{flagged}", flush=True)

    def _conclude_interrupted(
        self, mesh: Mesh, trainer: Trainer, signals: Signals, step: int
    ) -> None:
        if mesh.rank != 0:
            return
        received = signals.received or "a signal on another rank"
        result = replace(
            self.outcome.result("interrupted"),
            train_steps=step,
            test_steps=trainer.tested,
            resumed_from=self.origin.describe() if self.origin else None,
        )
        conclude(self.outcome.known_attempt, result)
        print(f"{self.cell.id}: stopped by {received} before training step {step}", flush=True)
        requeue_if_asked(self.environment, signals.received)

    def _header(self, mesh: Mesh, parts: Parts) -> Header:
        import torch

        return Header(
            cell=self.cell.id,
            attempt=self.outcome.known_attempt.number,
            rank=mesh.rank,
            replica=mesh.replica,
            stage=mesh.stage,
            world_size=mesh.layout.world_size,
            host=self.environment.host,
            pid=os.getpid(),
            cpu_model=cpu_model(),
            cpus=len(os.sched_getaffinity(0)),
            threads=torch.get_num_threads(),
            device=str(mesh.device),
            layers=[layer.name for layer in parts.stage.outlines],
            parameters=sum(p.numel() for p in parts.stage.parameters()),
            started_at=self.started_at,
            slurm=dict(self.environment.slurm),
            versions=versions(),
            startup_s={name: round(s, 3) for name, s in self.startup_s.items()},
        )

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.startup_s[name] = time.perf_counter() - began

    def _redirect(self, attempt: AttemptPaths) -> None:
        """From here on this rank's words go to its own log; a process alone keeps its terminal."""
        if self.environment.launcher == "alone":
            return
        sys.stdout.flush()
        sys.stderr.flush()
        path = attempt.log(self.environment.rank)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise GnnhpcError(f"{path}: cannot be written ({error.strerror})") from None
        self.outcome.keep_stderr()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Garbage is not looked for while modules are loaded, and what they made never again.

    Looking takes a sixth of the time that importing torch takes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

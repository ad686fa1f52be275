"""One rank's training between its set-up and its result: restore, train, save, write the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from gnnhpc.core.errors import EXIT_DONE, EXIT_UNFINISHED
from gnnhpc.core.provenance import seconds_since_process_start
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.requeue import is_interrupted, requeue, requeues_used_up
from gnnhpc.distributed.signals import Signals
from gnnhpc.engines.cuda_graph import why_eager
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.models.seeding import seed_generators
from gnnhpc.records.record_writer import FileDigest, RecordWriter
from gnnhpc.records.result_file import final_key, write_result_once
from gnnhpc.records.resume_points import EarlierAttempts, environment_of
from gnnhpc.records.schema import Check, EventRecord
from gnnhpc.training.attempt import Attempt
from gnnhpc.training.events import RecordsSteps, Validator, WrongRunError
from gnnhpc.training.loop import Stopped, TrainingLoop
from gnnhpc.training.progress_line import progress_listener
from gnnhpc.training.setup import TrainingParts


@dataclass
class TrainingRun:
    """What is left of an attempt once its ranks are set up."""

    attempt: Attempt
    mesh: Mesh
    parts: TrainingParts
    writer: RecordWriter
    validator: Validator
    signals: Signals

    def run(self) -> int:
        """Train and test, validate and write the result; or save a checkpoint and stop.

        Returns the exit status. Raises WrongRunError for a run that validation ends.
        """
        try:
            start = self._restore()
            self.validator.at_start(start)
            loop = self._loop()
            loop.run(start)
        except Stopped as stopped:
            self._save_checkpoint(loop, stopped.step)
            self._end_interrupted(loop, stopped.step)
            return EXIT_UNFINISHED
        except WrongRunError as error:
            self.attempt.wrong = error.check
            raise
        self._record_cuda_graphs()
        checks = self.validator.at_end(loop.experiment.train_steps)
        self.writer.write(*self.validator.events())
        self._write_result(loop, checks)
        return EXIT_DONE

    def _restore(self) -> int:
        """Seed the generators and load the checkpoint, if there is one; the step to begin with."""
        seed_generators(self.attempt.cell.experiment.seed, self.mesh.rank)
        point = self.attempt.resumed
        if point is None:
            return 0
        # It loads torch's compiler, which a run without checkpoints does not need.
        from gnnhpc.training.checkpoint import load

        with self.parts.timer.outside("reading a checkpoint"):
            load(point.path, self.mesh, self.parts.stage, self.parts.optimizer)
        return point.step

    def _loop(self) -> TrainingLoop:
        experiment, point = self.attempt.cell.experiment, self.attempt.resumed
        first_log = self.attempt.known_paths.log(0).name
        loop = TrainingLoop(
            experiment=experiment,
            mesh=self.mesh,
            parts=self.parts,
            listeners=[
                RecordsSteps(self.writer, spans=experiment.spans),
                progress_listener(experiment, self.mesh, first_log),
                *self.validator.listeners,
            ],
            stop_requested=self.signals.stop_requested,
            test_steps_done=point.test_steps_done if point else 0,
        )
        self.attempt.position = loop.position
        loop.after_step = lambda done: self._save_where_asked_for(loop, done)
        return loop

    def _save_where_asked_for(self, loop: TrainingLoop, step: int) -> None:
        every = loop.experiment.save_every
        if every and step % every == 0 and step < loop.experiment.train_steps:
            self._save_checkpoint(loop, step)

    def _record_cuda_graphs(self) -> None:
        """Write how many steps on a GPU were replayed, or why none was."""
        if self.mesh.device.type != "cuda":
            return
        engine, experiment = self.parts.engine, self.attempt.cell.experiment
        captures = SequentialEngine | NativeEngine
        graphs = engine.graphs if isinstance(engine, captures) else None
        why = why_eager(experiment, self.mesh.device)
        detail = {"all": f"eager: {why}"} if graphs is None else graphs.record()
        self.writer.write(EventRecord("cuda graph", 0.0, detail))

    def _save_checkpoint(self, loop: TrainingLoop, step: int) -> None:
        from gnnhpc.training.checkpoint import save

        began_s = time.perf_counter()
        checks = self.validator.at_checkpoint(step)
        files = self._written()
        attempt, paths = self.attempt, self.attempt.known_paths
        metadata = {
            "tested": loop.test_steps_done,
            "balance": attempt.balance,
            "environment": environment_of(attempt.ranks),
            "earlier": asdict(self._earlier().with_attempt(paths.root.name, checks, files)),
        }
        with self.parts.timer.outside("writing a checkpoint"):
            save(paths, self.mesh, self.parts.stage, self.parts.optimizer, step, metadata)
        self.writer.write(EventRecord("checkpoint", time.perf_counter() - began_s, {"step": step}))

    def _written(self) -> dict[str, FileDigest]:
        """What all ranks have written of their records."""
        ranks = self.mesh.gather_objects(self.writer.written)
        return {name: digest for files in ranks for name, digest in files.items()}

    def _earlier(self) -> EarlierAttempts:
        return self.attempt.resumed.earlier if self.attempt.resumed else EarlierAttempts()

    def _write_result(self, loop: TrainingLoop, checks: list[Check]) -> None:
        files = self._written()
        if self.mesh.rank == 0:
            with self.parts.timer.outside("writing the result"):
                self.attempt.read_other_jobs("end")
                self._write_done(loop, files, checks)
        self.mesh.barrier()

    def _write_done(
        self, loop: TrainingLoop, files: dict[str, FileDigest], checks: Sequence[Check]
    ) -> None:
        """Write the result after the last step; `files` are all ranks'."""
        attempt = self.attempt
        # The earlier attempts' folders are beside this one's.
        earlier = {f"../{name}": dict(one) for name, one in self._earlier().records.items()}
        result = replace(
            attempt.result("done"),
            train_steps=loop.experiment.train_steps,
            test_steps=loop.test_steps_done,
            final={
                final_key(phase, name): value
                for phase, metrics in loop.final.items()
                for name, value in metrics.items()
            },
            graph=self.parts.batches.graph_metadata(),
            records={**files, **earlier},
        )
        began_s = time.perf_counter()
        audited = self.validator.audit(attempt.known_paths, result)
        validation_s = self.validator.seconds + time.perf_counter() - began_s
        result = replace(
            result,
            audit=[*checks, *audited, *self._earlier().checks()],
            validation={
                "seconds": round(validation_s, 3),
                "attempt_s": round(seconds_since_process_start(), 3),
            },
        )
        if write_result_once(attempt.known_paths, result):
            flagged = f", flagged {', '.join(result.flags)}" if result.flags else ""
            folder = attempt.known_paths.root
            attempt.log.print_to_both(f"{attempt.cell.id}: done{flagged}; results in {folder}")

    def _end_interrupted(self, loop: TrainingLoop, step: int) -> None:
        """Write the result once the checkpoint is written, and put the job back into the queue."""
        if self.mesh.rank != 0:
            return
        attempt, received = self.attempt, self.signals.received
        environment, refused = attempt.environment, None
        by_slurm = is_interrupted(environment, received)
        if by_slurm:
            refused = requeues_used_up(environment, environment.restart_count + 1)
        attempt.read_other_jobs("end")
        result = replace(
            attempt.result("interrupted"),
            train_steps=step,
            test_steps=loop.test_steps_done,
            failure=attempt.failure(refused) if refused else None,
        )
        write_result_once(attempt.known_paths, result)
        signal_name = received or "a signal on another rank"
        stopped = f"stopped by {signal_name} before training step {step}"
        print(f"{attempt.cell.id}: {stopped}", flush=True)
        if by_slurm and refused is None:
            requeue(environment)

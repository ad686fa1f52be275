"""One rank of one cell, from its environment to its records; rank 0 writes the result."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.core.balance import stage_slices
from gnnhpc.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_UNFINISHED,
    GnnhpcError,
    InputError,
)
from gnnhpc.core.provenance import code_digest, seconds_since_process_start, versions
from gnnhpc.core.run_paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.environment import Environment, check_world_size, read_environment
from gnnhpc.distributed.requeue import (
    requeue_if_interrupted,
    requeued_too_often,
    requeues_used_up,
)
from gnnhpc.distributed.signals import Signals, handled_signals
from gnnhpc.experiment.custom_model_files import load_model
from gnnhpc.experiment.manifest import Cell, find_cell
from gnnhpc.records.code_snapshot import CodeOrigin, origin_for
from gnnhpc.records.failures import utc_now
from gnnhpc.records.resume_points import find_resume_point, written_by
from gnnhpc.records.schema import EventRecord
from gnnhpc.run.attempt import Attempt, write_not_begun
from gnnhpc.run.finished_before import finished_before
from gnnhpc.run.same_code import RankCode, check_ranks_run_the_same

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh
    from gnnhpc.records.record_writer import RecordWriter
    from gnnhpc.training.loop import TrainingLoop
    from gnnhpc.training.setup import TrainingParts
    from gnnhpc.validation.boundary import Validation


def run_cell(manifest: Path, array: str, index: int, *, live: bool = False) -> int:
    """Run the cell of an array task, as the rank that this process is; an exit status.

    Raises InputError for a manifest, index, environment or world size that does not fit, and for
    other code than the run keeps, unless `live`.
    """
    paths = RunPaths(manifest.resolve().parent)
    code = origin_for(paths, live=live)
    return Worker(find_cell(manifest, array, index), paths, code).run()


@dataclass
class Worker:
    """Runs one cell as one rank: claim an attempt, join, build, restore, train, write a result."""

    cell: Cell
    run_paths: RunPaths
    code: CodeOrigin = field(default_factory=CodeOrigin)
    environment: Environment = field(default_factory=read_environment)
    started_at: str = field(default_factory=utc_now)
    startup_s: dict[str, float] = field(default_factory=dict)
    attempt: Attempt = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = Attempt(
            self.cell, self.environment, self.code, self.started_at, self.startup_s
        )

    def run(self) -> int:
        """Returns the exit status, EXIT_UNFINISHED of ranks that were asked to stop and have saved.

        The cell's errors are printed and recorded, not raised.
        """
        check_world_size(self.environment, self.cell.experiment.process_layout)
        if self.cell.experiment.data.facts().kind == "images":
            map_large_blocks_separately()
        else:
            keep_freed_memory()
        with handled_signals(self.attempt.exit_after_signal) as signals:
            try:
                return self._run(signals)
            except InputError as error:
                self.attempt.fail(error)
                return EXIT_INPUT
            except Exception as error:
                self.attempt.fail(error)
                if not isinstance(error, GnnhpcError):
                    import traceback

                    traceback.print_exc()
                return EXIT_FAILED

    def _run(self, signals: Signals) -> int:
        ended = self._claim() if self.environment.rank == 0 else None
        if ended is not None and self.environment.world_size == 1:
            return ended
        self.startup_s["before"] = seconds_since_process_start()
        mesh, ranks = self._join(ended)
        status = ranks[0].ended
        if status is None:
            self._begin(mesh, ranks)
            parts = self._build(mesh)
            status = self._train(mesh, parts, signals)
        from gnnhpc.distributed.mesh import leave

        mesh.barrier()
        leave(mesh)
        return status

    def _claim(self) -> int | None:
        """On rank 0, for all: the next attempt's folder; or the status with which all end at once.

        A job that is done has nothing to do where Slurm starts it once more, and one that was
        requeued too often goes no further.
        """
        cell_paths = self.run_paths.cell(self.cell.id)
        finished = finished_before(cell_paths, self.environment)
        if finished is not None:
            print(
                f"{self.cell.id}: nothing to do, attempt {finished.number} of this job is done and "
                "valid; it was requeued after its result",
                flush=True,
            )
            return EXIT_DONE
        self.attempt.paths = _claim_attempt(cell_paths)
        refused = requeued_too_often(self.environment)
        if refused is None:
            return None
        write_not_begun(self.attempt, refused)
        return EXIT_FAILED

    def _join(self, ended: int | None) -> tuple[Mesh, list[RankCode]]:
        """Import torch and connect to the other ranks; also what each of them runs."""
        with self._timed("imports"), _no_garbage_collection():
            import torch

            from gnnhpc.distributed.devices import choose_devices
            from gnnhpc.distributed.mesh import join
            from gnnhpc.training import loop as _  # noqa: F401 - the heavy imports, timed here

            torch.set_num_threads(self.environment.cpus)
        with self._timed("rendezvous"):
            experiment, secret = self.cell.experiment, self.run_paths.secret
            stages = experiment.stages_per_process
            device, *more = choose_devices(experiment.device, self.environment, stages)
            place = (experiment.process_layout, device, secret, more, experiment.loss_stage)
            mesh = join(self.environment, *place)
            paths = self.attempt.paths
            mine = RankCode(
                attempt=paths.number if paths else None,
                ended=ended,
                code=code_digest(),
                versions=versions(),
                cell=self.cell.id,
                host=self.environment.host,
            )
            ranks = mesh.gather_objects(mine)
        return mesh, ranks

    def _begin(self, mesh: Mesh, ranks: list[RankCode]) -> None:
        """Take the attempt that rank 0 has claimed; check that all have the same code and cell."""
        number = ranks[0].attempt
        assert number is not None
        self.attempt.hosts = [each.host for each in ranks]
        self.attempt.paths = self.run_paths.cell(self.cell.id).attempt(number)
        if self.environment.launcher != "alone":
            self.attempt.log.redirect(self.attempt.paths.log(mesh.rank))
        check_ranks_run_the_same(ranks)

    def _build(self, mesh: Mesh) -> TrainingParts:
        from gnnhpc.data.roots import data_root
        from gnnhpc.run.rank_facts import rank_facts
        from gnnhpc.training.setup import set_up

        if mesh.rank == 0:
            self.attempt.look_at_other_jobs("start")
        with self._timed("build"):
            # Not before all ranks know the attempt: whichever cannot load it leaves a record.
            load_model(self.cell.experiment, self.run_paths)
            root = data_root(self.cell.data_root)
            parts = set_up(self.cell.experiment, mesh, root)
            self.attempt.implementation = parts.implementation
            self.attempt.ranks = mesh.gather_objects(rank_facts(self.environment, mesh, parts))
            self._choose_resume_point(mesh)
            kept = self.attempt.resume.balance
            if kept not in (None, [len(each) for each in parts.planned]):
                # Measured again, layers may be balanced otherwise; one measurement has one cut.
                cut = stage_slices(kept)
                parts = set_up(self.cell.experiment, mesh, root, planned=cut, batches=parts.batches)
            self.attempt.balance = [len(each) for each in parts.planned]
        self.startup_s["total"] = seconds_since_process_start()
        return parts

    def _choose_resume_point(self, mesh: Mesh) -> None:
        """On rank 0, for all: the newest checkpoint that fits what these ranks compute with."""
        resume = None
        if mesh.rank == 0:
            cell_paths = self.run_paths.cell(self.cell.id)
            here = written_by(self.attempt.ranks)
            resume = find_resume_point(cell_paths, self.attempt.known_paths, here)
            for line in resume.lines():
                print(f"{self.cell.id}: {line}", flush=True)
        self.attempt.resume = mesh.gather_objects(resume)[0]

    def _train(self, mesh: Mesh, parts: TrainingParts, signals: Signals) -> int:
        """Train and test; then validate and write the result, or save a checkpoint and stop."""
        from gnnhpc.data.roots import data_root
        from gnnhpc.distributed.watchdog import watching
        from gnnhpc.records.record_writer import RecordWriter
        from gnnhpc.run.header import rank_header
        from gnnhpc.run.results import write_done
        from gnnhpc.training.loop import Stopped
        from gnnhpc.validation.boundary import Validation

        records = self.attempt.known_paths.records(mesh.rank)
        with (
            RecordWriter(records, rank_header(self.attempt, mesh, parts)) as writer,
            watching(mesh, parts.timer, self.attempt.exit_after_hang),
        ):
            root = data_root(self.cell.data_root)
            validation = Validation(self.cell.experiment, parts, mesh, root)
            start = self._restore(mesh, parts, writer)
            validation.at_start(start)
            loop = self._loop(mesh, parts, writer, validation, signals)
            try:
                loop.run(start)
            except Stopped as stopped:
                self._save_checkpoint(loop, writer, validation, stopped.step)
                self._end_interrupted(loop, signals, stopped.step)
                return EXIT_UNFINISHED
            checks = validation.at_end(loop.experiment.train_steps)
            writer.write(*validation.events())
            files = mesh.gather_objects(writer.written)
            samples = mesh.gather_objects(parts.batches.samples if mesh.stage == 0 else 0)
            if mesh.rank == 0:
                with parts.timer.outside("writing the result"):
                    self.attempt.look_at_other_jobs("end")
                    write_done(
                        *(self.attempt, loop, files, sum(samples), checks),
                        validation_s=validation.seconds,
                    )
            mesh.barrier()
        return EXIT_DONE

    def _restore(self, mesh: Mesh, parts: TrainingParts, writer: RecordWriter) -> int:
        """Seed the generators and load the checkpoint, if there is one; the step to begin with."""
        from gnnhpc.training.seeding import seed_generators

        seed_generators(self.cell.experiment.seed, mesh.rank)
        for each in self.attempt.resume.passed_over:
            writer.write(EventRecord("checkpoint passed over", 0.0, dict(each)))
        point = self.attempt.resume_point
        if point is None:
            return 0
        # It loads torch's compiler, which a run without checkpoints does not need.
        from gnnhpc.training.checkpoint import load

        with parts.timer.outside("reading a checkpoint"):
            load(point.path, mesh, parts.stage, parts.optimizer)
        writer.write(EventRecord("resumed", 0.0, point.as_record()))
        return point.step

    def _loop(
        self,
        mesh: Mesh,
        parts: TrainingParts,
        writer: RecordWriter,
        validation: Validation,
        signals: Signals,
    ) -> TrainingLoop:
        from gnnhpc.training.loop import TrainingLoop
        from gnnhpc.training.progress_line import progress_listener
        from gnnhpc.training.step_records import RecordsSteps

        experiment, point = self.cell.experiment, self.attempt.resume_point
        loop = TrainingLoop(
            experiment=experiment,
            mesh=mesh,
            parts=parts,
            listeners=[
                RecordsSteps(writer, spans=experiment.spans),
                progress_listener(experiment, mesh.rank),
                *validation.listeners,
            ],
            stop_requested=signals.stop_requested,
            test_steps_done=point.test_steps_done if point else 0,
        )
        self.attempt.position = loop.position
        every = experiment.save_every
        if every:

            def save_every(done: int) -> None:
                if done % every == 0 and done < experiment.train_steps:
                    self._save_checkpoint(loop, writer, validation, done)

            loop.after_step = save_every
        return loop

    def _save_checkpoint(
        self, loop: TrainingLoop, writer: RecordWriter, validation: Validation, step: int
    ) -> None:
        from gnnhpc.training.checkpoint import save
        from gnnhpc.validation.boundary import WrongRunError

        began_s = time.perf_counter()
        try:
            checks = validation.at_checkpoint(step)
        except WrongRunError as error:
            self.attempt.wrong = error.check
            raise
        mesh, parts = loop.mesh, loop.parts
        files = mesh.gather_objects(writer.written)
        folder = self.attempt.known_paths.root.name
        with parts.timer.outside("writing a checkpoint"):
            save(
                self.attempt.known_paths,
                mesh,
                parts.stage,
                parts.optimizer,
                cell=self.cell.id,
                step=step,
                test_steps_done=loop.test_steps_done,
                written_by=written_by(self.attempt.ranks, self.attempt.balance),
                so_far=self.attempt.so_far.with_attempt(folder, checks, files),
            )
        writer.write(EventRecord("checkpoint", time.perf_counter() - began_s, {"step": step}))

    def _end_interrupted(self, loop: TrainingLoop, signals: Signals, step: int) -> None:
        """Write the result once the checkpoint is written, and put the job back into the queue."""
        from gnnhpc.run.results import write_interrupted

        if loop.mesh.rank != 0:
            return
        received = signals.received or "a signal on another rank"
        refused = requeues_used_up(self.environment, signals.received)
        self.attempt.look_at_other_jobs("end")
        write_interrupted(self.attempt, loop, received, step, refused=refused)
        requeue_if_interrupted(self.environment, signals.received)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.startup_s[name] = time.perf_counter() - began_s


def _claim_attempt(cell_paths: CellPaths) -> AttemptPaths:
    """Make the next attempt's folder; GnnhpcError where the run folder cannot be written."""
    try:
        return cell_paths.claim_attempt()
    except OSError as error:
        raise GnnhpcError(f"{cell_paths.root}: cannot be written ({error.strerror})") from None


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No garbage collection while modules are imported, and none of their objects later.

    It takes a sixth of the time that importing torch takes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

"""One rank of one cell, from its environment to its records; rank 0 writes the result."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnhpc.core.balance import stage_slices
from gnnhpc.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_UNFINISHED,
    GnnhpcError,
    InputError,
)
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.environment import Environment, check_world_size, read_environment
from gnnhpc.distributed.requeue import (
    requeue_if_interrupted,
    requeued_too_often,
    requeues_used_up,
)
from gnnhpc.distributed.signals import Signals, handled_signals
from gnnhpc.experiment.manifest import Cell, find_cell
from gnnhpc.experiment.own_model_files import load_model
from gnnhpc.records.code_snapshot import CodeOrigin, origin_for
from gnnhpc.records.failures import one_line, utc_now
from gnnhpc.records.provenance import code_digest, seconds_since_process_start, versions
from gnnhpc.records.resume import find_resume_point
from gnnhpc.records.run_paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.records.schema import Check, EventRecord
from gnnhpc.records.written_by import written_by
from gnnhpc.run.attempt import Attempt, write_not_begun
from gnnhpc.run.finished_before import finished_before

if TYPE_CHECKING:
    from gnnhpc.check.check_slice import CheckSlice
    from gnnhpc.check.observer import RunObserver
    from gnnhpc.check.self_check import SelfCheck
    from gnnhpc.distributed.mesh import Mesh
    from gnnhpc.records.writer import RecordWriter
    from gnnhpc.run.look_back import LookBack
    from gnnhpc.run.results import Finished
    from gnnhpc.train.loop import Trainer
    from gnnhpc.train.setup import TrainingParts


def run_cell(manifest: Path, array: str, index: int, *, live: bool = False) -> int:
    """Run the cell that an array task means, as the rank this process is; an exit status.

    Raises InputError for a manifest, index, environment or world size that does not fit, and for
    other code than the run keeps, unless `live`.
    """
    paths = RunPaths(manifest.resolve().parent)
    code = origin_for(paths, live=live)
    return Worker(find_cell(manifest, array, index), paths, code).run()


def _check_ranks_run_the_same(ranks: list[dict[str, Any]]) -> None:
    """Raises GnnhpcError if a rank has other code, package versions or another cell than rank 0."""
    first = ranks[0]
    for rank, entry in enumerate(ranks):
        for what in ("code", "versions", "cell"):
            if entry[what] != first[what]:
                raise GnnhpcError(
                    f"rank {rank} on {entry['host']} runs other {what} "
                    f"({_what_differs(entry[what], first[what])}) than "
                    f"rank 0 on {first['host']} ({_what_differs(first[what], entry[what])})"
                )


def _what_differs(here: str | dict[str, str], there: str | dict[str, str]) -> str:
    """Of versions those that the other has not."""
    if isinstance(here, str) or isinstance(there, str):
        return str(here)
    names = sorted(name for name in here | there if here.get(name) != there.get(name))
    return ", ".join(f"{name} {here.get(name, 'missing')}" for name in names)


def _claim_attempt(cell_paths: CellPaths) -> AttemptPaths:
    """Make the next attempt's folder; GnnhpcError where the run folder cannot be written."""
    try:
        return cell_paths.claim_attempt()
    except OSError as error:
        raise GnnhpcError(f"{cell_paths.root}: cannot be written ({error.strerror})") from None


@dataclass
class Worker:
    """Runs one cell as one rank."""

    cell: Cell
    run_paths: RunPaths
    code: CodeOrigin = field(default_factory=CodeOrigin)
    environment: Environment = field(default_factory=read_environment)
    started_at: str = field(default_factory=utc_now)
    startup_s: dict[str, float] = field(default_factory=dict)
    attempt: Attempt = field(init=False)
    _observer: RunObserver = field(init=False)
    _failed_check: str | None = None
    """Why a self-check failed; known to rank 0."""
    _dead_layers: list[str] = field(default_factory=list)
    """Those without a gradient in the first self-check and its twin; known to rank 0."""

    def __post_init__(self) -> None:
        self.attempt = Attempt(
            self.cell, self.environment, self.code, self.started_at, self.startup_s
        )

    def run(self) -> int:
        """Returns the exit status, EXIT_UNFINISHED of ranks that were told to stop and have saved.

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
        status: int | None = ranks[0]["ended"]
        if status is None:
            self._begin(mesh, ranks)
            parts = self._set_up(mesh)
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

    def _join(self, ended: int | None) -> tuple[Mesh, list[dict[str, Any]]]:
        """Import torch, connect to the other ranks; also what each of them says of itself."""
        with self._timed("imports"), _no_garbage_collection():
            import torch

            from gnnhpc.distributed.devices import choose_devices
            from gnnhpc.distributed.mesh import join
            from gnnhpc.train import loop as _  # noqa: F401 - the heavy imports, timed here

            torch.set_num_threads(self.environment.cpus)
        with self._timed("rendezvous"):
            experiment, secret = self.cell.experiment, self.run_paths.secret
            stages = experiment.stages_per_process
            device, *more = choose_devices(experiment.device, self.environment, stages)
            place = (experiment.process_layout, device, secret, more, experiment.loss_stage)
            mesh = join(self.environment, *place)
            paths = self.attempt.paths
            ranks = mesh.gather_objects(
                {
                    "attempt": paths.number if paths else None,
                    "ended": ended,
                    "code": code_digest(),
                    "versions": versions(),
                    "cell": self.cell.id,
                    "host": self.environment.host,
                }
            )
        return mesh, ranks

    def _begin(self, mesh: Mesh, ranks: list[dict[str, Any]]) -> None:
        """Take the attempt that rank 0 has claimed; check that all have the same code and cell."""
        self.attempt.hosts = [entry["host"] for entry in ranks]
        self.attempt.paths = self.run_paths.cell(self.cell.id).attempt(ranks[0]["attempt"])
        if self.environment.launcher != "alone":
            self.attempt.log.redirect(self.attempt.paths.log(mesh.rank))
        _check_ranks_run_the_same(ranks)

    def _set_up(self, mesh: Mesh) -> TrainingParts:
        from gnnhpc.data.roots import data_root
        from gnnhpc.run.rank_facts import rank_facts
        from gnnhpc.train.setup import set_up

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
            if kept not in (None, [len(part) for part in parts.planned]):
                # Measured again, layers may be balanced otherwise; one measurement has one cut.
                cut = stage_slices(kept)
                parts = set_up(self.cell.experiment, mesh, root, planned=cut, batches=parts.batches)
            self.attempt.balance = [len(part) for part in parts.planned]
        self.startup_s["total"] = seconds_since_process_start()
        return parts

    def _choose_resume_point(self, mesh: Mesh) -> None:
        """On rank 0, for all: the newest checkpoint that what these ranks compute with fits."""
        resume = None
        if mesh.rank == 0:
            cell_paths = self.run_paths.cell(self.cell.id)
            here = written_by(self.attempt.ranks)
            resume = find_resume_point(cell_paths, self.attempt.known_paths, here)
            for line in resume.lines():
                print(f"{self.cell.id}: {line}", flush=True)
        self.attempt.resume = mesh.gather_objects(resume)[0]

    def _train(self, mesh: Mesh, parts: TrainingParts, signals: Signals) -> int:
        """Train and test; then audit and write the result, or save a checkpoint and stop."""
        from gnnhpc.check.observer import RunObserver
        from gnnhpc.check.watches.run_watch import RunWatch
        from gnnhpc.check.watches.stage_facts import stage_facts
        from gnnhpc.data.roots import data_root
        from gnnhpc.distributed.watchdog import watching
        from gnnhpc.engines.device_activity import activity_of
        from gnnhpc.records.writer import RecordWriter
        from gnnhpc.run.header import rank_header
        from gnnhpc.run.look_back import LookBack
        from gnnhpc.run.results import write_done
        from gnnhpc.train.loop import Stopped
        from gnnhpc.train.progress import progress_reporter

        start = self.attempt.resume_point.step if self.attempt.resume_point else 0
        records = self.attempt.known_paths.records(mesh.rank)
        with (
            RecordWriter(records, rank_header(self.attempt, mesh, parts)) as writer,
            progress_reporter(self.cell.experiment, mesh.rank, start) as report,
            watching(mesh, activity_of(parts.timer), self.attempt.exit_after_hang),
        ):
            root = data_root(self.cell.data_root)
            checked = self._self_check(mesh, parts, writer, root)
            watch = RunWatch.of(self.cell.experiment, mesh, parts, root)
            observer = RunObserver.of(mesh, parts.batches, watch)
            self._observer = observer
            observer.machine_use.peak_is_of_run = checked.peak_forgotten
            trainer = self._trainer(mesh, parts, writer, observer)
            clock = observer.second_clock
            clock.attach(parts.stage, trainer.optimizer, mesh, parts.loss)
            observer.time_faults.parts.stage = stage_facts(self.cell.experiment, mesh, parts)
            observer.records.with_spans = self.cell.experiment.spans
            trainer.stop_requested = signals.stop_requested
            trainer.report = report
            self.attempt.progress = trainer.progress
            end = LookBack(
                experiment=self.cell.experiment,
                environment=self.environment,
                mesh=mesh,
                parts=parts,
                trainer=trainer,
                observer=observer,
                writer=writer,
                root=root,
                first_check=checked,
                self_check=lambda part: self._self_check(mesh, parts, writer, root, part),
            )
            try:
                trainer.run(start)
            except Stopped as stopped:
                self._save_checkpoint(mesh, parts, trainer, writer, stopped.step)
                self._end_interrupted(signals, stopped.step, end)
                return EXIT_UNFINISHED
            found = end.before(self.cell.experiment.train_steps)
            with parts.timer.storage("writing the result"):
                if mesh.rank == 0:
                    self.attempt.look_at_other_jobs("end")
                    write_done(self.attempt, parts, trainer, found)
                mesh.barrier()
        return EXIT_DONE

    def _end_interrupted(self, signals: Signals, step: int, end: LookBack) -> None:
        """Once the checkpoint is written: look back if there is time, write the result, requeue.

        Whatever becomes of the checks, even if the signal's grace ends in them.
        """
        from gnnhpc.run.results import write_interrupted

        def write(found: Finished | None = None) -> None:
            if end.mesh.rank == 0:
                received = signals.received or "a signal on another rank"
                refused = requeues_used_up(self.environment, signals.received)
                how = (self.attempt, end.parts, end.trainer, received, step)
                write_interrupted(*how, refused=refused, found=found)
                requeue_if_interrupted(self.environment, signals.received)

        self.attempt.at_end_of_grace = write
        try:
            seconds = end.seconds_left(signals.received)
            found = None if seconds is None else end.before(step, seconds)
        except Exception as error:
            # Also that another rank has gone; who resumes says that these checks are missing.
            print(f"{self.cell.id}: not checked at its end: {one_line(error)}", flush=True)
            write()
            self.attempt.exit_now(EXIT_UNFINISHED)
        if end.mesh.rank == 0:
            self.attempt.look_at_other_jobs("end")
        write(found)
        self.attempt.at_end_of_grace = lambda: None

    def _self_check(
        self,
        mesh: Mesh,
        parts: TrainingParts,
        writer: RecordWriter,
        root: Path | None,
        part: CheckSlice | None = None,
    ) -> SelfCheck:
        """A few small steps against a twin, by this attempt's own ranks, kernels and threads."""
        from gnnhpc.check.self_check import self_check

        checked = self_check(self.cell.experiment, parts, mesh, self.environment, root, part)
        name = checked.name
        writer.write(EventRecord(name, checked.seconds, {"on": checked.part.left_out}))
        self._failed_check = self._failed_check or checked.cause
        if part is None:
            self._dead_layers = checked.dead
        if checked.cause is not None and mesh.rank == 0:
            print(f"{self.cell.id}: {name} failed, {checked.cause}", flush=True)
        return checked

    def _trainer(
        self, mesh: Mesh, parts: TrainingParts, writer: RecordWriter, observer: RunObserver
    ) -> Trainer:
        from gnnhpc.train.generators import seed_generators
        from gnnhpc.train.loop import Trainer

        experiment = self.cell.experiment
        seed_generators(experiment.seed, mesh.rank)
        trainer = Trainer(
            experiment=experiment,
            mesh=mesh,
            stage=parts.stage,
            engine=parts.engine,
            batches=parts.batches,
            task=parts.task,
            optimizer=parts.optimizer,
            timer=parts.timer,
            writer=writer,
            observer=observer,
        )
        every = experiment.save_every
        if every:

            def checkpoint(done: int) -> None:
                if done % every == 0 and done < experiment.train_steps:
                    self._save_checkpoint(mesh, parts, trainer, writer, done)

            trainer.after_step = checkpoint
        for each in self.attempt.resume.passed_over:
            writer.write(EventRecord("checkpoint passed over", 0.0, dict(each)))
        if self.attempt.resume_point is not None:
            from gnnhpc.train.checkpoint import load
            from gnnhpc.train.restored import check_restored, not_restored

            path = self.attempt.resume_point.path
            with parts.timer.storage("reading a checkpoint"):
                load(path, mesh, parts.stage, trainer.optimizer)
                check_restored(path, mesh, parts.stage, trainer.optimizer)
                loose = mesh.gather_objects(not_restored(path, mesh, parts.stage))
            self.attempt.not_restored = next(filter(None, loose), "")
            trainer.test_steps_done = self.attempt.resume_point.test_steps_done
            writer.write(EventRecord("resumed", 0.0, self.attempt.resume_point.as_record()))
        return trainer

    def _save_checkpoint(
        self,
        mesh: Mesh,
        parts: TrainingParts,
        trainer: Trainer,
        writer: RecordWriter,
        step: int,
    ) -> None:
        from gnnhpc.train.checkpoint import save

        began = time.perf_counter()
        with trainer.observer.observing():
            trainer.observer.before_checkpoint(step)
            checks = self._check_so_far(mesh, parts)
        files = mesh.gather_objects(writer.written)
        folder = self.attempt.known_paths.root.name
        with parts.timer.storage("writing a checkpoint"):
            save(
                self.attempt.known_paths,
                mesh,
                parts.stage,
                trainer.optimizer,
                cell=self.cell.id,
                step=step,
                test_steps_done=trainer.test_steps_done,
                written_by=written_by(self.attempt.ranks, self.attempt.balance),
                so_far=self.attempt.so_far.with_attempt(
                    folder, checks, files, self._observer.step_times.step_s
                ),
            )
        seconds = time.perf_counter() - began
        writer.write(EventRecord("checkpoint", seconds, {"step": step}))

    def _check_so_far(self, mesh: Mesh, parts: TrainingParts) -> Sequence[Check]:
        """The audit. Raises GnnhpcError where what was done is wrong: who resumes would go on with
        it.

        A collective; the steps before a checkpoint are judged here alone if the attempt dies.
        """
        from gnnhpc.check.audit import audit
        from gnnhpc.check.observations import gather_observations
        from gnnhpc.check.plain.parts import held_by

        observer = self._observer
        found = gather_observations(
            mesh, parts, observer, self.environment, self.cell.experiment.bucket_mib
        )
        graph, holders = parts.batches.graph_facts(), held_by(self.cell.experiment)
        dead = mesh.gather_objects(self._dead_layers)[0]
        checks = audit(found, parts.outlines, mesh.layout, parts.planned, holders, graph, dead)
        causes = [f"{each.name}: {each.detail}" for each in checks if each.verdict == "invalid"]
        mine = observer.records.differing(self.attempt.known_paths.records(mesh.rank))
        causes += [f"records: {each}" for each in mesh.gather_objects(mine) if each]
        failed = mesh.gather_objects(self._failed_check)[0]
        if failed:
            causes.insert(0, f"self-check: {failed}")
        if causes:
            found_wrong = "; ".join(causes)
            self.attempt.wrong = Check("no checkpoint", "invalid", found_wrong)
            raise GnnhpcError(f"no checkpoint is written of a run that is wrong: {found_wrong}")
        return checks

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.startup_s[name] = time.perf_counter() - began


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

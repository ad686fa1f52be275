"""One rank's training: joins the others, builds its part, restores, trains, writes the result."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace

import torch

from gnnhpc.core.errors import EXIT_DONE, EXIT_UNFINISHED
from gnnhpc.core.provenance import code_digest, seconds_since_process_start, versions
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import data_root
from gnnhpc.distributed.devices import choose_devices
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.distributed.signals import Signals
from gnnhpc.distributed.slurm_job import is_interrupted, requeue, requeues_used_up
from gnnhpc.distributed.watchdog import watching
from gnnhpc.engines.cuda_graph import why_eager
from gnnhpc.experiment.copy_custom_models import load_model
from gnnhpc.experiment.stage_cut import stage_slices
from gnnhpc.models.seeding import seed_generators
from gnnhpc.records.choose_resume_point import environment_of, find_resume_point
from gnnhpc.records.rank_record_writer import FileDigest, RecordWriter
from gnnhpc.records.result_file import final_key, write_result_once
from gnnhpc.records.schema import Check, EventRecord
from gnnhpc.training.listeners import RecordsSteps, progress_listener
from gnnhpc.training.loop import Stopped, TrainingLoop
from gnnhpc.training.setup import TrainingParts, compile_layers, set_up
from gnnhpc.validation.audit.rank_records import CUDA_GRAPHS
from gnnhpc.validation.boundary import Validation
from gnnhpc.worker.attempt import Attempt
from gnnhpc.worker.rank_metadata import check_ranks_run_the_same, rank_header, rank_metadata


def train_attempt(attempt: Attempt, run: RunPaths, signals: Signals) -> int:
    """Do what is left of an attempt once rank 0 has claimed it; returns the exit status.

    Raises WrongRunError for a run that validation ends.
    """
    mesh = _join_ranks(attempt, run)
    parts = _build_training(attempt, run, mesh)
    records = attempt.known_paths.records(mesh.rank)
    header = rank_header(attempt, mesh, parts)
    with (
        contextlib.closing(RecordWriter(records, header)) as writer,
        watching(mesh, parts.timer.activity, attempt.exit_after_hang),
    ):
        experiment, root = attempt.cell.experiment, data_root(attempt.cell.data_root)
        validation = Validation(experiment, parts, mesh, root)
        status = TrainingRun(attempt, mesh, parts, writer, validation).run(signals)
    mesh.barrier()
    leave(mesh)
    return status


def _join_ranks(attempt: Attempt, run: RunPaths) -> Mesh:
    """Connect to the other ranks, and take the attempt that rank 0 has claimed.

    Raises GnnhpcError where a rank has another code or cell.
    """
    experiment, environment = attempt.cell.experiment, attempt.environment
    torch.set_num_threads(environment.cpus)
    with attempt.timed("rendezvous"):
        stages = experiment.stages_per_process
        device, *more = choose_devices(experiment.device, environment, stages)
        mesh = join(environment, experiment.process_layout, device, more, experiment.loss_stage)
        mine = {
            "attempt": attempt.paths.number if attempt.paths else None,
            "cell": attempt.cell.id,
            "host": environment.host,
            "code": code_digest(),
            "versions": versions(),
        }
        ranks = mesh.gather_objects(mine)
    attempt.hosts = [each["host"] for each in ranks]
    attempt.paths = run.cell(attempt.cell.id).attempt(ranks[0]["attempt"])
    if environment.launcher != "alone":
        attempt.print_into(attempt.paths.log(mesh.rank))
    check_ranks_run_the_same(ranks)
    return mesh


def _build_training(attempt: Attempt, run: RunPaths, mesh: Mesh) -> TrainingParts:
    """Build this rank's stage; also choose the checkpoint that all ranks resume from."""
    experiment = attempt.cell.experiment
    if mesh.rank == 0:
        attempt.read_other_jobs("start")
    with attempt.timed("build"):
        # Not before all ranks know the attempt: whichever cannot load it leaves a record.
        load_model(experiment, run)
        root = data_root(attempt.cell.data_root)
        parts = set_up(experiment, mesh, root)
        attempt.ranks = mesh.gather_objects(rank_metadata(attempt.environment.host, mesh, parts))
        attempt.balance = [len(each) for each in parts.plan.cut]
        _choose_resume_point(attempt, run, mesh)
        point = attempt.resumed
        if point is not None and point.balance != attempt.balance:
            # Measured again, layers may be balanced otherwise; one measurement has one cut.
            attempt.balance = point.balance
            cut = stage_slices(point.balance)
            parts = set_up(experiment, mesh, root, planned=cut, batches=parts.batches)
    if experiment.compile != "off":
        with attempt.timed("compile"):
            compile_layers(experiment, parts)
    attempt.startup_s["total"] = seconds_since_process_start()
    return parts


def _choose_resume_point(attempt: Attempt, run: RunPaths, mesh: Mesh) -> None:
    """Take the newest checkpoint that fits these ranks, which rank 0 finds for all."""
    point = None
    if mesh.rank == 0:
        paths, environment = run.cell(attempt.cell.id), environment_of(attempt.ranks)
        point, skipped = find_resume_point(paths, attempt.known_paths, environment)
        for line in skipped:
            print(f"{attempt.cell.id}: {line}", flush=True)
    attempt.resumed = mesh.gather_objects(point)[0]


@dataclass
class TrainingRun:
    """Trains the parts of a rank; writes its records, checkpoints and the result."""

    attempt: Attempt
    mesh: Mesh
    parts: TrainingParts
    writer: RecordWriter
    validation: Validation

    def run(self, signals: Signals) -> int:
        """Returns the exit status. Raises WrongRunError for a run that validation ends."""
        attempt, experiment = self.attempt, self.attempt.cell.experiment
        start = self._restore()
        self.validation.at_start(start)
        every = experiment.save_every

        def save_where_asked(step: int) -> None:
            if every and step % every == 0 and step < experiment.train_steps:
                self._save_checkpoint(loop, step)

        loop = TrainingLoop(
            parts=self.parts,
            listeners=[
                RecordsSteps(self.writer, spans=experiment.spans),
                progress_listener(experiment, self.mesh, attempt.known_paths.log(0).name),
                *self.validation.listeners,
            ],
            stop_requested=lambda: signals.received is not None,
            after_step=save_where_asked,
            test_steps_done=attempt.resumed.test_steps_done if attempt.resumed else 0,
        )
        attempt.position = loop.position
        try:
            loop.run(start)
        except Stopped as stopped:
            self._save_checkpoint(loop, stopped.step)
            if self.mesh.rank == 0:
                self._end_interrupted(loop, stopped.step, signals.received)
            return EXIT_UNFINISHED
        self._record_cuda_graphs()
        checks = self.validation.at_end(experiment.train_steps)
        self.writer.write(*self.validation.events())
        files = self._written()
        if self.mesh.rank == 0:
            with self.parts.timer.outside("writing the result"):
                self._write_result(loop, checks, files)
        self.mesh.barrier()
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

    def _save_checkpoint(self, loop: TrainingLoop, step: int) -> None:
        from gnnhpc.training.checkpoint import save

        began_s = time.perf_counter()
        checks = self.validation.at_checkpoint(step)
        files = self._written()
        attempt, paths = self.attempt, self.attempt.known_paths
        metadata = {
            "tested": loop.test_steps_done,
            "balance": attempt.balance,
            "environment": environment_of(attempt.ranks),
            "earlier": asdict(attempt.earlier.with_attempt(paths.root.name, checks, files)),
        }
        with self.parts.timer.outside("writing a checkpoint"):
            save(paths, self.mesh, self.parts.stage, self.parts.optimizer, step, metadata)
        self.writer.write(EventRecord("checkpoint", time.perf_counter() - began_s, {"step": step}))

    def _written(self) -> dict[str, FileDigest]:
        """What all ranks have written of their records; a collective."""
        ranks = self.mesh.gather_objects(self.writer.written)
        return {name: digest for files in ranks for name, digest in files.items()}

    def _end_interrupted(self, loop: TrainingLoop, step: int, received: str | None) -> None:
        """Write the result once the checkpoint is written, and put the job back into the queue."""
        attempt, environment = self.attempt, self.attempt.environment
        by_slurm, refused = is_interrupted(environment, received), None
        if by_slurm:
            refused = requeues_used_up(environment, environment.restart_count + 1)
        attempt.read_other_jobs("end")
        result = attempt.result(
            "interrupted",
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

    def _record_cuda_graphs(self) -> None:
        """Write how many steps on a GPU were replayed, or why none was."""
        if self.mesh.device.type == "cuda":
            graphs = self.parts.engine.graphs
            why = why_eager(self.attempt.cell.experiment, self.mesh.device)
            detail = {"all": f"eager: {why}"} if graphs is None else graphs.record()
            self.writer.write(EventRecord(CUDA_GRAPHS, 0.0, detail))

    def _write_result(
        self, loop: TrainingLoop, checks: list[Check], files: dict[str, FileDigest]
    ) -> None:
        """Write the result after the last step; `files` are the records of all ranks."""
        attempt, paths, earlier = self.attempt, self.attempt.known_paths, self.attempt.earlier
        attempt.read_other_jobs("end")
        result = attempt.result(
            "done",
            train_steps=loop.experiment.train_steps,
            test_steps=loop.test_steps_done,
            final={
                final_key(phase, name): value
                for phase, metrics in loop.final.items()
                for name, value in metrics.items()
            },
            graph=self.parts.batches.graph_metadata(),
            # The earlier attempts' folders are beside this one's.
            records=files | {f"../{name}": dict(one) for name, one in earlier.records.items()},
        )
        began_s = time.perf_counter()
        audited = self.validation.audit(paths, result)
        validation_s = self.validation.seconds + time.perf_counter() - began_s
        result = replace(
            result,
            audit=[*checks, *audited, *earlier.checks()],
            validation={
                "seconds": round(validation_s, 3),
                "attempt_s": round(seconds_since_process_start(), 3),
            },
        )
        if write_result_once(paths, result):
            flagged = f", flagged {', '.join(result.flags)}" if result.flags else ""
            attempt.print_to_both(f"{attempt.cell.id}: done{flagged}; results in {paths.root}")

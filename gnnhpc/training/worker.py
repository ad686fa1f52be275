"""One rank of one cell, from its environment to its exit status; rank 0 writes the result."""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError, InputError
from gnnhpc.core.provenance import code_digest, seconds_since_process_start, versions
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import data_root
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.environment import Environment, check_world_size
from gnnhpc.distributed.requeue import requeues_used_up
from gnnhpc.distributed.signals import Signals, handled_signals
from gnnhpc.experiment.custom_model_files import load_model
from gnnhpc.experiment.manifest import Cell, find_cell
from gnnhpc.experiment.stage_cut import stage_slices
from gnnhpc.records.code_snapshot import origin_for
from gnnhpc.records.resume_points import ResumePoint, environment_of, find_resume_point
from gnnhpc.training.attempt import Attempt, finished_before, write_not_begun

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh
    from gnnhpc.training.events import MakeValidator
    from gnnhpc.training.rank_metadata import RankCode
    from gnnhpc.training.setup import TrainingParts


def run_cell(
    manifest: Path, array: str, index: int, make_validator: MakeValidator, *, live: bool = False
) -> int:
    """Run the cell of an array task, as the rank that this process is; an exit status.

    Raises InputError for a manifest, index, environment or world size that does not fit, and for
    other code than the run keeps, unless `live`.
    """
    paths = RunPaths(manifest.resolve().parent)
    code = origin_for(paths, live=live)
    attempt = Attempt(find_cell(manifest, array, index), code)
    return Worker(attempt, paths, make_validator).run()


@dataclass
class Worker:
    """Runs one cell as one rank: claim_attempt, join_ranks, build_training, then a TrainingRun
    restores, trains and writes the result."""

    attempt: Attempt
    run_paths: RunPaths
    make_validator: MakeValidator

    @property
    def cell(self) -> Cell:
        return self.attempt.cell

    @property
    def environment(self) -> Environment:
        return self.attempt.environment

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
            except Exception as error:
                self.attempt.fail(error)
                if not isinstance(error, GnnhpcError):
                    traceback.print_exc()
                return EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED

    def _run(self, signals: Signals) -> int:
        ended = self._claim_attempt() if self.environment.rank == 0 else None
        if ended is not None and self.environment.world_size == 1:
            return ended
        mesh, ranks = self._join_ranks(ended)
        status = ranks[0].ended
        if status is None:
            self._enter_attempt(mesh, ranks)
            parts = self._build_training(mesh)
            status = self._train(mesh, parts, signals)
        from gnnhpc.distributed.rendezvous import leave

        mesh.barrier()
        leave(mesh)
        return status

    def _claim_attempt(self) -> int | None:
        """The next attempt's folder, which rank 0 claims for all, or the status with which all end
        at once.

        A job that is done has nothing to do where Slurm starts it once more, and one that was
        requeued too often goes no further.
        """
        paths = self.run_paths.cell(self.cell.id)
        finished = finished_before(paths, self.environment)
        if finished is not None:
            print(
                f"{self.cell.id}: nothing to do, attempt {finished.number} of this job is done and "
                "valid; it was requeued after its result",
                flush=True,
            )
            return EXIT_DONE
        try:
            self.attempt.paths = paths.claim_attempt()
        except OSError as error:
            raise GnnhpcError(f"{paths.root}: cannot be written ({error.strerror})") from None
        refused = requeues_used_up(self.environment, self.environment.restart_count)
        if refused is None:
            return None
        write_not_begun(self.attempt, refused)
        return EXIT_FAILED

    def _join_ranks(self, ended: int | None) -> tuple[Mesh, list[RankCode]]:
        """Import torch and connect to the other ranks; also what each of them runs."""
        self.attempt.startup_s["before"] = seconds_since_process_start()
        with self._timed("imports"), _no_garbage_collection():
            import torch

            from gnnhpc.distributed.devices import choose_devices
            from gnnhpc.distributed.rendezvous import join
            from gnnhpc.training import training_run as _  # noqa: F401 - the heavy imports
            from gnnhpc.training.rank_metadata import RankCode

            torch.set_num_threads(self.environment.cpus)
        with self._timed("rendezvous"):
            experiment = self.cell.experiment
            stages = experiment.stages_per_process
            device, *more = choose_devices(experiment.device, self.environment, stages)
            place = (experiment.process_layout, device, more, experiment.loss_stage)
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

    def _enter_attempt(self, mesh: Mesh, ranks: list[RankCode]) -> None:
        """Take the attempt that rank 0 has claimed; check that all have the same code and cell."""
        from gnnhpc.training.rank_metadata import check_ranks_run_the_same

        number = ranks[0].attempt
        assert number is not None
        self.attempt.hosts = [each.host for each in ranks]
        self.attempt.paths = self.run_paths.cell(self.cell.id).attempt(number)
        if self.environment.launcher != "alone":
            self.attempt.log.redirect(self.attempt.paths.log(mesh.rank))
        check_ranks_run_the_same(ranks)

    def _build_training(self, mesh: Mesh) -> TrainingParts:
        """Build this rank's stage; also choose the checkpoint that all ranks resume from."""
        from gnnhpc.training.rank_metadata import rank_metadata
        from gnnhpc.training.setup import compile_layers, set_up

        if mesh.rank == 0:
            self.attempt.read_other_jobs("start")
        with self._timed("build"):
            # Not before all ranks know the attempt: whichever cannot load it leaves a record.
            load_model(self.cell.experiment, self.run_paths)
            root = data_root(self.cell.data_root)
            parts = set_up(self.cell.experiment, mesh, root)
            self.attempt.implementation = parts.implementation
            self.attempt.ranks = mesh.gather_objects(rank_metadata(self.environment, mesh, parts))
            self.attempt.resumed = self._choose_resume_point(mesh)
            balance = [len(each) for each in parts.plan.cut]
            if self.attempt.resumed and self.attempt.resumed.balance != balance:
                # Measured again, layers may be balanced otherwise; one measurement has one cut.
                balance = self.attempt.resumed.balance
                cut = stage_slices(balance)
                parts = set_up(self.cell.experiment, mesh, root, planned=cut, batches=parts.batches)
            self.attempt.balance = balance
        if self.cell.experiment.compile != "off":
            with self._timed("compile"):
                compile_layers(self.cell.experiment, parts)
        self.attempt.startup_s["total"] = seconds_since_process_start()
        return parts

    def _choose_resume_point(self, mesh: Mesh) -> ResumePoint | None:
        """The newest checkpoint that fits these ranks, which rank 0 finds for all."""
        point = None
        if mesh.rank == 0:
            paths = self.run_paths.cell(self.cell.id)
            here = environment_of(self.attempt.ranks)
            point, skipped = find_resume_point(paths, self.attempt.known_paths, here)
            for line in skipped:
                print(f"{self.cell.id}: {line}", flush=True)
        found: ResumePoint | None = mesh.gather_objects(point)[0]
        return found

    def _train(self, mesh: Mesh, parts: TrainingParts, signals: Signals) -> int:
        from gnnhpc.distributed.watchdog import watching
        from gnnhpc.records.record_writer import RecordWriter
        from gnnhpc.training.rank_metadata import rank_header
        from gnnhpc.training.training_run import TrainingRun

        records = self.attempt.known_paths.records(mesh.rank)
        header = rank_header(self.attempt, mesh, parts)
        with (
            contextlib.closing(RecordWriter(records, header)) as writer,
            watching(mesh, parts.timer, self.attempt.exit_after_hang),
        ):
            root = data_root(self.cell.data_root)
            validator = self.make_validator(self.cell.experiment, parts, mesh, root)
            return TrainingRun(self.attempt, mesh, parts, writer, validator, signals).run()

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.attempt.startup_s[name] = time.perf_counter() - began_s


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

"""One rank of one cell, from its environment to its exit status; torch is imported on the way."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Iterator
from pathlib import Path

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, GnnhpcError, InputError
from gnnhpc.core.provenance import seconds_since_process_start
from gnnhpc.core.run_paths import AttemptPaths, CellPaths, RunPaths
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.environment import Environment, check_world_size
from gnnhpc.distributed.signals import Signals
from gnnhpc.distributed.slurm_job import requeues_used_up
from gnnhpc.experiment.manifest import find_cell
from gnnhpc.records.code_snapshot import origin_for
from gnnhpc.records.result_file import read_if_whole, slurm_job, write_result_once
from gnnhpc.worker.attempt import Attempt


def run_cell(manifest: Path, array: str, index: int, *, live: bool = False) -> int:
    """Run the cell of an array task, as the rank that this process is; an exit status.

    Raises InputError for a manifest, index, environment or world size that does not fit, and for
    other code than the run keeps, unless `live`.
    """
    paths = RunPaths(manifest.resolve().parent)
    code = origin_for(paths, live=live)
    return run_attempt(Attempt(find_cell(manifest, array, index), code), paths)


def run_attempt(attempt: Attempt, run: RunPaths) -> int:
    """Run an attempt as the rank that this process is: rank 0 claims it, then `train_attempt` joins
    the ranks, builds the training, restores, trains and writes the result.

    Returns the exit status, EXIT_UNFINISHED of ranks that were asked to stop and have saved. The
    cell's errors are printed and recorded, not raised.
    """
    environment, experiment = attempt.environment, attempt.cell.experiment
    check_world_size(environment, experiment.process_layout)
    if experiment.data.facts().kind == "images":
        map_large_blocks_separately()
    else:
        keep_freed_memory()
    with contextlib.closing(Signals(attempt.exit_after_signal)) as signals:
        try:
            ended = _claim_attempt(attempt, run.cell(attempt.cell.id))
            if ended is not None:
                return ended
            attempt.startup_s["before"] = seconds_since_process_start()
            with attempt.timed("imports"), _no_garbage_collection():
                from gnnhpc.worker.training_run import train_attempt
            return train_attempt(attempt, run, signals)
        except Exception as error:
            attempt.fail(error)
            if not isinstance(error, GnnhpcError):
                traceback.print_exc()
            return EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED


def _claim_attempt(attempt: Attempt, cell: CellPaths) -> int | None:
    """Take the next attempt's folder, which rank 0 claims for all; returns the status with which
    this rank ends at once, if all do.

    A job that is done has nothing to do where Slurm starts it once more, and one that was requeued
    too often goes no further. All ranks see so in the same files and variables.
    """
    environment, is_first = attempt.environment, attempt.environment.rank == 0
    finished = finished_before(cell, environment)
    if finished is not None:
        if is_first:
            print(
                f"{attempt.cell.id}: nothing to do, attempt {finished.number} of this job is done "
                "and valid; it was requeued after its result",
                flush=True,
            )
        return EXIT_DONE
    refused = requeues_used_up(environment, environment.restart_count)
    if is_first:
        try:
            attempt.paths = cell.claim_attempt()
        except OSError as error:
            raise GnnhpcError(f"{cell.root}: cannot be written ({error.strerror})") from None
        if refused is not None:
            # A later attempt may go on.
            result = attempt.result("interrupted", failure=attempt.failure(refused))
            write_result_once(attempt.paths, result)
            print(f"{attempt.cell.id}: {refused}", flush=True)
            return EXIT_FAILED
    # srun kills all ranks as soon as one fails, and rank 0 has a result to write.
    return None if refused is None else EXIT_DONE


def finished_before(cell: CellPaths, environment: Environment) -> AttemptPaths | None:
    """The newest valid attempt of this very job, if this is not its first start.

    A job can be requeued between its result and its end, and then has nothing left to do. Another
    job at the same cell was asked for.
    """
    mine = slurm_job(environment.slurm)
    if mine is None or not environment.restart_count:
        return None
    for attempt in reversed(cell.attempts()):
        result = read_if_whole(attempt.result)
        if result is not None and result.valid and result.slurm_job == mine:
            return attempt
    return None


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

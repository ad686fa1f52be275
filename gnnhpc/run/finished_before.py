"""Whether a job that Slurm starts again has finished its cell already."""

from __future__ import annotations

from gnnhpc.core.run_paths import AttemptPaths, CellPaths
from gnnhpc.distributed.environment import Environment
from gnnhpc.records.result_file import read_if_whole, slurm_job


def finished_before(cell: CellPaths, environment: Environment) -> AttemptPaths | None:
    """The newest valid attempt of this very job, if this is not its first start.

    A job can be requeued between its result and its end, and then has nothing left to do. Another
    job at the same cell was asked for, and so was a local run within a job.
    """
    mine = slurm_job(dict(environment.slurm))
    if mine is None or not environment.restart_count or environment.launcher == "local":
        return None
    for attempt in reversed(cell.attempts()):
        result = read_if_whole(attempt.result)
        if result is not None and result.valid and result.slurm_job == mine:
            return attempt
    return None

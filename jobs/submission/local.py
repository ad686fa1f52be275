"""This machine as a scheduler: a supervisor process that runs the cells one after another."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.libraries import check_sampler_is_here
from jobs.run.run_state import RunState
from jobs.run.submission_records import process_start
from jobs.slurm.sbatch_options import check_local_options
from jobs.submission.local_runs import LocalRun, run_cells, start_supervisor, stop_supervisors
from jobs.submission.scheduler import Job, Scheduler, Watch, record_job
from jobs.submission.submission import Options, Submission


class Local(Scheduler):
    """Processes of this machine."""

    job = "local process"

    def check_here(self, run: Path, experiments: Sequence[Experiment]) -> None:
        for experiment in experiments:
            experiment.model.check_here()
            if experiment.sampling is not None:
                check_sampler_is_here(experiment.sampling.sampler)

    def check_options(self, options: Options) -> None:
        check_local_options(options.settings)
        for name in options.after:
            raise InputError("--after", None, f"{name} with --cluster local", "--cluster slurm")

    def submit(self, submission: Submission, paths: RunPaths, *, wait: bool) -> list[Job]:
        """With `wait` the cells are for this process to run, by `wait`."""
        supervisor = None if wait else start_supervisor(paths)
        pid = supervisor.pid if supervisor else os.getpid()
        for array in submission.arrays:
            record_job(submission, paths, array, str(pid), process_start(pid))
        if supervisor is not None and supervisor.stdin is not None:
            pickle.dump(_local_run(submission), supervisor.stdin)
            supervisor.stdin.close()
        return [(array, str(pid)) for array in submission.arrays]

    def wait(self, submission: Submission, watch: Watch | None) -> int:
        return run_cells(_local_run(submission))

    def query(self, state: RunState) -> list[str]:
        return sorted(state.supervisors)

    def cancel(self, state: RunState, *, force: bool) -> list[str]:
        supervisors = self.query(state)
        stop_supervisors(map(int, supervisors))
        return [f"local supervisor {pid}" for pid in supervisors]


def _local_run(submission: Submission) -> LocalRun:
    ids = tuple(cell.id for cell in submission.cells)
    return LocalRun(RunPaths(submission.run), ids, submission.launch)

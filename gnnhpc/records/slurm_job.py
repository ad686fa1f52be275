"""Which job of Slurm's an attempt belongs to, as its records say: a requeue keeps the job."""

from __future__ import annotations

from collections.abc import Mapping


def slurm_job(slurm: object) -> str | None:
    """Names a job and its cluster: `1230_4 of lab`, with the task of an array; None outside Slurm.

    `slurm` is what results and headers keep of SLURM_*.
    """
    if not isinstance(slurm, Mapping):
        return None
    array, task = slurm.get("SLURM_ARRAY_JOB_ID"), slurm.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else slurm.get("SLURM_JOB_ID")
    cluster = slurm.get("SLURM_CLUSTER_NAME")
    return f"{job} of {cluster}" if job and cluster else job and str(job)


def without_cluster(job: str) -> str:
    """The job as squeue of its own cluster calls it: `1230_4`."""
    return job.partition(" of ")[0]

"""Which job of Slurm's an attempt belongs to, as its records say: a requeue keeps the job."""

from __future__ import annotations

from collections.abc import Mapping


def slurm_job(slurm: Mapping[str, str] | None) -> tuple[str, str] | None:
    """Cluster, and array job and task or else the job's id; None outside Slurm.

    `slurm` is what results and headers keep of SLURM_*.
    """
    slurm = slurm or {}
    array, task = slurm.get("SLURM_ARRAY_JOB_ID"), slurm.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else slurm.get("SLURM_JOB_ID")
    return (slurm.get("SLURM_CLUSTER_NAME", ""), job) if job else None

"""All defects; importing this registers them in the order of the matrix."""

from __future__ import annotations

from tests.defects.defect import DEFECTS
from tests.defects.plants import (
    batches,
    batchnorm,
    data,
    dropout,
    evaluation,
    gradient_scale,
    graphs,
    kernels,
    machine,
    optimizer,
    records,
    replicas,
    resume,
    sampling,
    schedules,
    timing,
    transfers,
)

__all__ = ["DEFECTS", "PLANTS"]

PLANTS = (
    *(gradient_scale, data, batches, replicas, transfers, schedules, batchnorm, dropout),
    *(optimizer, evaluation, graphs, kernels, sampling, machine, timing, resume, records),
)

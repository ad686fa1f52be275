"""All defects; importing this registers them in the order of the matrix."""

from __future__ import annotations

import importlib

from tests.defects.defect import DEFECTS

__all__ = ["DEFECTS"]

PLANTS = (
    *("gradient_scale", "data", "batches", "replicas", "transfers", "schedules", "batchnorm"),
    *("dropout", "optimizer", "evaluation", "graphs", "kernels", "sampling", "machine"),
    *("timing", "resume", "records"),
)
for module in PLANTS:
    importlib.import_module(f"tests.defects.plants.{module}")

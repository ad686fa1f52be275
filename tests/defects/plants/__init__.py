"""The defects by their subject; importing them registers them in the order of the matrix."""

from __future__ import annotations

import importlib

SUBJECTS = (
    *("gradients", "data", "transfers", "schedules", "layers", "optimizer"),
    *("graphs", "kernels", "sampling", "machine", "records"),
)
for subject in SUBJECTS:
    importlib.import_module(f"{__name__}.{subject}")

"""Imports what ranks need, DGL where it is installed, for the process that they are forked from."""

from __future__ import annotations

import contextlib
import importlib

from gnnhpc.core.errors import InputError
from gnnhpc.models.libraries import import_dgl

for name in (
    "pytest",
    "rich.table",
    "torch.distributed.checkpoint",
    "gnnhpc.batches.chunk_batches",
    "gnnhpc.batches.image_batches",
    "gnnhpc.engines.libraries.torch_pipelining",
    "gnnhpc.engines.native",
    "gnnhpc.engines.sequential",
    "gnnhpc.models.layers.pyg_layers",
    "gnnhpc.models.vig.fused",
    "gnnhpc.models.vig.reference",
    "gnnhpc.validation.engine_parity",
    "gnnhpc.worker.run_cell",
    "gnnhpc.worker.training_run",
):
    importlib.import_module(name)
with contextlib.suppress(InputError):
    import_dgl()

"""Whether the library of a neighbour sampler is installed here. Imports none, nor torch."""

from __future__ import annotations

import importlib.util

from gnnhpc.core.errors import InputError
from gnnhpc.models.dgl_import import check_dgl_is_here

ASKED_FOR = ("sampling", "sampler")
"""Where an experiment names it."""
FOR_PYG = ("pyg_lib", "torch_sparse")
"""Either has the compiled sampler behind PyG's NeighborLoader."""


def check_sampler_is_here(sampler: str) -> None:
    """Raises InputError where `pyg` or `dgl` is not installed; ours, `ours`, always is."""
    if sampler == "dgl":
        check_dgl_is_here(*ASKED_FOR)
    if sampler == "pyg" and not any(map(importlib.util.find_spec, FOR_PYG)):
        raise pyg_sampler_missing("is not installed")


def pyg_sampler_missing(why: str) -> InputError:
    return InputError(
        *ASKED_FOR,
        f"pyg, whose torch-sparse or pyg-lib {why}",
        "one of them: make setup-pyg-sampler",
    )

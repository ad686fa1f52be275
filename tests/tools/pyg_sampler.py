"""PyG's neighbour sampler for tests that compare with it."""

from __future__ import annotations

import os

import pytest
import torch_geometric.typing as pyg_has


def needs_pyg_sampler() -> None:
    """Skips the test where torch-sparse and pyg-lib are missing, unless one must be there."""
    if pyg_has.WITH_PYG_LIB or pyg_has.WITH_TORCH_SPARSE:
        return
    assert not os.environ.get("GNNHPC_REQUIRE_PYG_SAMPLER"), "no torch-sparse, no pyg-lib"
    pytest.skip("needs torch-sparse or pyg-lib: make setup-pyg-sampler")

"""DGL for tests that compare with it."""

from __future__ import annotations

import os

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.models.libraries import import_dgl


def needs_dgl() -> None:
    """Skips the test where DGL is not installed, unless it must be there."""
    try:
        import_dgl()
    except InputError as error:
        if os.environ.get("GNNHPC_REQUIRE_DGL"):
            raise
        pytest.skip(str(error))

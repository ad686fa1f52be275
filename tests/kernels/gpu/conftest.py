"""Without Triton these tests are skipped."""

from __future__ import annotations

import os

import pytest

from gnnhpc.kernels.gpu import here


@pytest.fixture(autouse=True)
def triton() -> None:
    if here.is_installed():
        return
    why = "triton is not installed: make setup-triton"
    if os.environ.get("GNNHPC_REQUIRE_TRITON"):
        pytest.fail(why)
    pytest.skip(why)

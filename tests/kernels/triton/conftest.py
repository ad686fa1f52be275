"""These tests are skipped without Triton, or where its interpreter cannot run on a CPU."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version

from gnnhpc.kernels.triton import launch as here

INTERPRETS = Version("3.7")
"""The interpreter of earlier releases fails with numpy from 2.4 on."""


@pytest.fixture(autouse=True)
def triton() -> None:
    why = ""
    if not here.is_installed():
        why = "triton is not installed: make setup-triton"
    elif not torch.cuda.is_available() and Version(version("triton")) < INTERPRETS:
        why = f"the interpreter of triton {version('triton')} needs an earlier numpy"
    if why and os.environ.get("GNNHPC_REQUIRE_TRITON"):
        pytest.fail(why)
    if why:
        pytest.skip(why)

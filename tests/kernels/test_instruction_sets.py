"""The kernels' tests under one setting that this machine would not choose, and for another kind of
machine; `make instruction-sets` has more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gnnhpc.kernels import compile as compiling
from tests.kernels.instruction_sets import SETTINGS, run_setting

CROSS_COMPILER = "aarch64-linux-gnu-g++"
TESTS = (
    "tests/kernels/test_vig_mlp.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/test_aggregate.py",
)


@pytest.mark.slow
def test_kernels_hold_under_another_setting() -> None:
    status = run_setting(SETTINGS[1], *TESTS)
    if status is None:
        pytest.skip(f"this processor lacks {SETTINGS[1].needs}")
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [path.stem for path in compiling.SOURCES.glob("*.cpp")])
def test_compiles_for_aarch64(kernel: str, tmp_path: Path) -> None:
    if shutil.which(CROSS_COMPILER) is None:
        assert "GNNHPC_REQUIRE_CROSS" not in os.environ, f"no {CROSS_COMPILER}"
        pytest.skip(f"no {CROSS_COMPILER}")
    source, library = compiling.SOURCES / f"{kernel}.cpp", tmp_path / f"{kernel}.so"
    flags = (*compiling.FLAGS, "-march=armv8-a", "-Wall", "-Werror")
    subprocess.run([CROSS_COMPILER, *flags, str(source), "-o", str(library)], check=True)
    assert library.read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64

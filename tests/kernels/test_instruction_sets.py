"""The kernels' tests under settings that this machine would not choose; a few of those that
`make instruction-sets` has."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gnnhpc.kernels import compile as compiling
from tests.kernels.instruction_sets import NO_OPENMP, Setting, run_setting

CROSS_COMPILER = "aarch64-linux-gnu-g++"
# What a laptop of ten years ago would do, and a machine whose compiler is poor.
FEW = [
    Setting("x86-64-v2", "default", "COMPATIBLE", 3),
    Setting(NO_OPENMP, "avx2", "AVX2", 2),
]
FEW_TESTS = [
    "tests/kernels/test_vig_mlp.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/test_aggregate.py",
    "tests/models/test_vig_fused.py::test_float32_is_the_exact_reference",
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", FEW, ids=["x86-64-v2", "no OpenMP"])
def test_kernels_hold_under_another_setting(setting: Setting, tmp_path: Path) -> None:
    outcome = run_setting(setting, tmp_path, FEW_TESTS)
    if outcome.verdict == "not here":
        pytest.skip(outcome.summary)
    assert outcome.verdict == "passed", outcome.output


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [path.stem for path in compiling._SOURCES.glob("*.cpp")])
@pytest.mark.parametrize("processor", ["armv8-a", "armv8.2-a+sve"])
def test_compiles_for_aarch64(kernel: str, processor: str, tmp_path: Path) -> None:
    if shutil.which(CROSS_COMPILER) is None:
        assert "GNNHPC_REQUIRE_CROSS" not in os.environ, f"no {CROSS_COMPILER}"
        pytest.skip(f"no {CROSS_COMPILER}")
    source = compiling._SOURCES / f"{kernel}.cpp"
    flags = (*compiling.FLAGS, f"-march={processor}", *compiling.OPENMP_FLAGS[0])
    flags = (*flags, "-Wall", "-Werror")
    library = tmp_path / f"{kernel}.so"
    subprocess.run([CROSS_COMPILER, *flags, str(source), "-o", str(library)], check=True)
    assert library.read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64


def test_levels_hold_those_below() -> None:
    levels = list(compiling.LEVELS.values())
    assert all(low < high for low, high in itertools.pairwise(levels))

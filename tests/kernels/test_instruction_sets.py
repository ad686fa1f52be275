"""Tests of kernels, models and parity checks under other instruction sets, orders of sums and
numbers of threads, and the kernels' compilation for other kinds of machines.

A kernel, torch and MKL each choose code by the processor that they find. Here the choice is forced,
each setting in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gnnhpc.kernels import compile as compiling
from tests.tools.backends import needs_triton

ROOT = Path(__file__).parents[2]
CROSS_COMPILER = "aarch64-linux-gnu-g++"
TESTS = ("tests/kernels", "tests/models", "tests/validation")


# A compiler's `-march=` or "off" for none -> the flag of /proc/cpuinfo that it needs, threads, and
# what torch (a compiled form) and MKL (a code path, and so an order of sums) are told to choose.
SETTINGS = {
    "x86-64": ("", "1", {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}),
    "x86-64-v3": ("avx2", "3", {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"}),
    "off": ("", "2", {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_results_hold_under_another_setting(setting: str) -> None:
    needs, threads, libraries = SETTINGS[setting]
    if needs not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip(f"this processor lacks {needs}")
    kernels = "GNNHPC_KERNELS" if setting == "off" else compiling.ARCHITECTURE_VARIABLE
    # Threads beyond the cores sleep while they wait.
    forced = {
        kernels: setting,
        **libraries,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        **dict.fromkeys(("OMP_DYNAMIC", "MKL_DYNAMIC"), "false"),
        "OMP_WAIT_POLICY": "passive",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not gpu", *TESTS]
    subprocess.run(command, cwd=ROOT, env=os.environ | forced, check=True)


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


@pytest.mark.slow
def test_all_programs_compile_for_a_gpu(tmp_path: Path) -> None:
    """Triton's interpreter takes what its compiler does not."""
    needs_triton()
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_gpus"],
        env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

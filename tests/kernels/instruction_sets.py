"""The kernels' tests under other instruction sets, other orders of sums, other numbers of threads.

    python -m tests.kernels.instruction_sets

A kernel, torch and MKL each choose code by the processor they find, so that one machine shows one
choice in many. Here the choices are forced, each setting in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from gnnhpc.kernels.compile import ARCHITECTURE_VARIABLE

ROOT = Path(__file__).parents[2]
TESTS = ("tests/kernels", "tests/models")


class Setting(NamedTuple):
    """What a run of the tests is forced to use."""

    kernels: str
    """A compiler's `-march=`, or "off"."""
    needs: str
    """What /proc/cpuinfo must have for it."""
    torch: str
    """`ATEN_CPU_CAPABILITY`: which of its compiled forms torch takes."""
    mkl: str
    """`MKL_CBWR`: which code path MKL takes, so in which order it adds."""
    threads: int


SETTINGS = (
    Setting("x86-64", "", "default", "COMPATIBLE", 1),
    Setting("x86-64-v2", "sse4_2", "avx2", "AVX2", 3),
    Setting("x86-64-v3", "avx2", "default", "COMPATIBLE", 2),
    Setting("x86-64-v4", "avx512f", "avx2", "AVX2", 3),
    Setting("native", "", "avx2", "AVX2", 2),
    Setting("off", "", "default", "COMPATIBLE", 2),
)


def run_setting(setting: Setting, *tests: str) -> int | None:
    """The exit status of the tests; None where this processor cannot run them."""
    if setting.needs not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return None
    threads = str(setting.threads)
    # As many threads as requested, however few cores; they sleep where others need the core.
    forced = {
        "GNNHPC_KERNELS" if setting.kernels == "off" else ARCHITECTURE_VARIABLE: setting.kernels,
        "ATEN_CPU_CAPABILITY": setting.torch,
        "MKL_CBWR": setting.mkl,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        **dict.fromkeys(("OMP_DYNAMIC", "MKL_DYNAMIC"), "false"),
        "OMP_WAIT_POLICY": "passive",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=os.environ | forced, check=False).returncode


def main() -> int:
    """0 when no setting failed."""
    statuses = [run_setting(setting, *TESTS) for setting in SETTINGS]
    for setting, status in zip(SETTINGS, statuses, strict=True):
        print(*setting, {None: "not here", 0: "passed"}.get(status, "FAILED"))
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    raise SystemExit(main())

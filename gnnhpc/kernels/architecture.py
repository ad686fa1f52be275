"""Which instruction set kernels are built for: this processor's, or one that is asked for.

`$GNNHPC_KERNEL_ARCH` is handed to the compiler as `-march=`; without it that is `native`. The
levels of x86-64 are checked against the processor, because a kernel that uses instructions that
are not there ends the process. Other names (`znver4`, `armv8-a`) are taken at their word.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

VARIABLE = "GNNHPC_KERNEL_ARCH"
NATIVE = "native"

_SECOND = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_THIRD = _SECOND | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_FOURTH = _THIRD | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS: dict[str, frozenset[str]] = {
    "x86-64": frozenset(),
    "x86-64-v2": _SECOND,
    "x86-64-v3": _THIRD,
    "x86-64-v4": _FOURTH,
}
"""What a processor needs for each level of x86-64, in the names of /proc/cpuinfo (x86-64 psABI,
section 3.1.1)."""


def wanted_architecture() -> str:
    """The compiler's `-march=`: `$GNNHPC_KERNEL_ARCH`, or `native`."""
    return os.environ.get(VARIABLE) or NATIVE


def lacking(architecture: str) -> list[str]:
    """The instruction sets that `architecture` needs and this processor does not name."""
    needed = LEVELS.get(architecture)
    if needed is None:
        return []
    if platform.machine() != "x86_64":
        return [architecture]
    return sorted(needed - set(_cpu_facts().get("flags", "").split()))


def cpu_model() -> str:
    """What `-march=native` depends on: the processor's name and its instruction sets."""
    facts = _cpu_facts()
    known = [facts[key] for key in ("model name", "flags", "Features") if key in facts]
    return "\n".join([platform.machine(), *known])


def _cpu_facts() -> dict[str, str]:
    """/proc/cpuinfo of the first processor; empty where there is none."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    return facts

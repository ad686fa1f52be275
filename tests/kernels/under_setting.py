"""Runs tests in a process that first makes sure it has the setting it was started with.

python -m tests.kernels.under_setting '{"threads": 2, "torch": "AVX2", "kernels": ""}' TEST...
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from gnnhpc.kernels import kernel_status, kernel_traits, load_kernel

KERNELS = ("aggregate", "gat", "gatv2", "vig")


def found(expected: dict[str, Any]) -> dict[str, Any]:
    """What this process has of what is expected; `kernels` their traits, None without any."""
    loaded = [load_kernel(name) for name in KERNELS]
    traits = {kernel_traits(name) for name, kernel in zip(KERNELS, loaded, strict=True) if kernel}
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "threads": torch.get_num_threads(),
        "torch": None if expected["torch"] is None else capability,
        "kernels": traits.pop() if len(traits) == 1 and all(loaded) else None,
    }


def main(expected: dict[str, Any], tests: list[str]) -> int:
    """pytest's exit status; 2 where the setting did not take hold."""
    if (has := found(expected)) != expected:
        print(f"expected {expected}, found {has} ({kernel_status(KERNELS[0])})")
        return 2
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *tests]))


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1]), sys.argv[2:]))

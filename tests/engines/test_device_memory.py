"""The peak of a GPU's memory: of each step, and none on a CPU."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.engines.device_memory import peak_mib, reset_peak


def test_each_step_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"peak": 3 * 2**20}
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device: held.update(peak=2**20)
    )
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: held["peak"])
    gpu = torch.device("cuda", 0)
    assert peak_mib([gpu]) == 3.0
    reset_peak([gpu])
    assert peak_mib([gpu]) == 1.0


def test_a_cpu_has_no_device_memory() -> None:
    reset_peak([torch.device("cpu")])
    assert peak_mib([torch.device("cpu")]) is None

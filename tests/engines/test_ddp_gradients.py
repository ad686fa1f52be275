"""DDP around a stage: what it is told of the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines import ddp_gradients
from gnnhpc.engines.ddp_gradients import DdpReplicas
from gnnhpc.engines.step_timer import StepTimer


class Told(nn.Module):
    """Keeps what DDP was told, in place of a GPU."""

    def __init__(self, module: nn.Module, **told: Any) -> None:
        super().__init__()
        self.told = told

    def register_comm_hook(self, state: object, hook: object) -> None: ...


def test_ddp_moves_no_argument_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch's number on the GPU would stop the host wherever it is read."""
    monkeypatch.setattr(ddp_gradients, "DistributedDataParallel", Told)
    mesh = Mesh(Layout(2, 1), 0, torch.device("cuda", 0), replicas=object())  # type: ignore[arg-type]
    timer = StepTimer(torch.device("cpu"))
    module = DdpReplicas(nn.Linear(2, 2), mesh, timer).module
    assert isinstance(module, Told)
    assert module.told.get("device_ids") is None

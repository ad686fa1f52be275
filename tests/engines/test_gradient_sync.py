"""Gradients in one flat buffer: views of it, its norm, and the mean over replicas."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.engines.step_timer import StepTimer

CPU = torch.device("cpu")


def stage() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False)).double()
    frozen = nn.Linear(2, 2).requires_grad_(False)
    return nn.Sequential(module, frozen)


def gradients(module: nn.Module, mesh: Mesh) -> FlatGradients:
    return FlatGradients(module, mesh, StepTimer(CPU))  # type: ignore[arg-type]


def fill(module: nn.Module, value: float) -> None:
    for number, parameter in enumerate(module.parameters()):
        if parameter.grad is not None:
            parameter.grad.fill_(value * (number + 1))


def test_every_gradient_is_its_own_part_of_the_buffer() -> None:
    module = stage()
    found = gradients(module, Mesh(Layout(), 0, CPU))
    (flat,) = found.flats
    assert flat.dtype == torch.float64
    assert not flat.any()
    fill(module, 1.0)
    assert flat.tolist() == [1.0] * 6 + [2.0] * 2 + [3.0] * 8
    flat.zero_()
    learns = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(p.grad is not None and p.grad.shape == p.shape and not p.grad.any() for p in learns)
    assert sum(p.grad is None for p in module.parameters()) == 2


def test_the_norm_is_of_all_of_them() -> None:
    module = stage()
    found = gradients(module, Mesh(Layout(), 0, CPU))
    fill(module, 1.0)
    assert found.norm() == pytest.approx((6 + 2 * 4 + 8 * 9) ** 0.5)


def test_one_replica_has_nothing_to_average() -> None:
    module = stage()
    found = gradients(module, Mesh(Layout(), 0, CPU))
    fill(module, 1.0)
    found.average()
    assert found.reductions == 0
    assert found.norm() == pytest.approx((6 + 2 * 4 + 8 * 9) ** 0.5)


def test_one_parameter_is_enough() -> None:
    module = nn.Linear(3, 2, bias=False)
    found = gradients(module, Mesh(Layout(), 0, CPU))
    (flat,) = found.flats
    assert (flat.shape, flat.dtype) == ((6,), torch.float32)


def test_a_stage_without_parameters_has_none() -> None:
    found = gradients(nn.Dropout(), Mesh(Layout(2, 1), 0, CPU))
    found.average()
    assert (found.flats, found.norm(), found.reductions) == ([], None, 0)


def be_replica(rank: int, store: str, answers: Queue[Any]) -> None:
    """One of two processes that hold a copy of the stage."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=limit
    )
    module = stage()
    mesh = Mesh(Layout(2, 1), rank, CPU, replicas=dist.group.WORLD)
    timer = StepTimer(CPU)
    timer.start()
    found = FlatGradients(module, mesh, timer)  # type: ignore[arg-type]
    fill(module, 1.0 + 2.0 * rank)
    found.average()
    times = timer.stop()
    timed = {span.name for span in times.spans}, times.gradients_ready_s is not None
    first = [p.grad.flatten()[0].item() for p in module.parameters() if p.grad is not None]
    fill(module, 5.0)
    found.average()
    answers.put((first, found.norm(), found.reductions, timed))
    # The other one may still be reading from this one.
    dist.barrier()


def test_two_replicas_have_the_mean_of_both(tmp_path: Path) -> None:
    """Forked, not spawned: torch is here already, and no thread of it has started."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    store = str(tmp_path / "store")
    ranks = [context.Process(target=be_replica, args=(r, store, answers)) for r in range(2)]
    try:
        for rank in ranks:
            rank.start()
        for _ in ranks:
            first, norm, reductions, timed = answers.get(timeout=60)
            assert first == [2.0, 4.0, 6.0]
            assert norm == pytest.approx(5 * (6 + 2 * 4 + 8 * 9) ** 0.5)
            assert reductions == 2
            assert timed == ({"allreduce"}, True)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()

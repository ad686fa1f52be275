"""Gradients in flat buffers: views of it, their norm, their buckets, and the mean over replicas."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.gradient_sync import FlatGradients, dense_strides, flatten, gradient_buckets
from gnnhpc.engines.step_timer import StepTimer

CPU = torch.device("cpu")
ALONE = Mesh(Layout(), 0, CPU)


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
    found = gradients(module, ALONE)
    (flat,) = found.flats
    assert flat.dtype == torch.float64
    fill(module, 1.0)
    found.average()
    assert flat.tolist() == [1.0] * 6 + [2.0] * 2 + [3.0] * 8
    assert found.norm() == pytest.approx((6 + 2 * 4 + 8 * 9) ** 0.5)
    found.scale(2.0)
    assert flat[0] == 2.0
    found.zero()
    assert not any(p.grad.any() for p in module.parameters() if p.grad is not None)
    assert sum(p.grad is None for p in module.parameters()) == 2
    assert found.reductions == 0, "one replica has nothing to average"


def test_gradients_lie_in_memory_as_their_parameters_do() -> None:
    tensors = [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(3, 8)[:, ::2],
        torch.randn(()),
        torch.randn(0, 3),
    ]
    parameters = [nn.Parameter(each) for each in tensors]
    flat = flatten(parameters)
    for n, p in enumerate(parameters):
        assert p.grad is not None
        assert p.grad.stride() == dense_strides(p)
        assert (dense_strides(p) == p.stride()) == (n != 3)
        p.grad.fill_(n + 1)
    counts = [p.numel() for p in parameters]
    assert flat.tolist() == [n + 1.0 for n, count in enumerate(counts) for _ in range(count)]


@given(st.lists(st.integers(0, 50)), st.floats(0.5, 120.0))
def test_every_gradient_is_in_one_bucket(sizes: list[int], least: float) -> None:
    found = gradient_buckets(sizes, least)
    held = [sum(sizes[layer] for layer in bucket) for bucket in found]
    assert sum(held) == sum(sizes)
    assert all(size > 0 for size in held)
    assert all(size >= least for size in held[:-1])
    assert all(later.stop == earlier.start for earlier, later in itertools.pairwise(found))
    assert not found or found[0].stop == len(sizes)


def test_buckets_are_neighbouring_layers_last_ones_first() -> None:
    assert gradient_buckets([0, 4, 0, 4, 0], 1) == [range(3, 5), range(1, 3)]

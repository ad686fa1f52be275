"""Gradients in flat buffers: views of it, their norm, their buckets, and the mean over replicas."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gnnhpc.engines.gradient_sync import dense_strides, flatten, gradient_buckets


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

"""What is drawn in torch is bit for bit what the compiled sampler draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import Drawn, Layer, Sampler
from gnnhpc.kernels.torch.torch_picks import Key, below
from gnnhpc.kernels.torch.torch_sampler import TorchSampler
from gnnhpc.validation.reference import random_numbers as reference
from tests.kernels.test_sample_neighbors import make_csr

needs_sampler = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
WORD = st.integers(0, 2**32 - 1)
SEEDS = st.integers(0, 2**64 - 1) | st.just(2**64 - 1)


# Of ranges near 2^32 up to half of all numbers are drawn again.
BOUNDS = st.integers(1, 100) | st.integers(1, 2**32 - 1) | st.integers(2**31, 2**31 + 5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(BOUNDS, min_size=7, max_size=7), min_size=1, max_size=4), SEEDS)
@example([[2**31 + 1] * 7, [3] * 7], 5)
def test_bounded_numbers_are_drawn_again_where_they_are_refused(
    bounds: list[list[int]], seed: int
) -> None:
    nodes = torch.arange(len(bounds))
    found = below(Key(seed, 3, 1), nodes, torch.tensor(bounds)).tolist()
    for node, (row, mine) in enumerate(zip(bounds, found, strict=True)):
        numbers = reference.node_numbers(seed, node, 3, 1)
        assert mine == [reference.below(numbers, bound) for bound in row]


def same(one: Drawn, other: Drawn) -> bool:
    parts = [(getattr(one, name), getattr(other, name)) for name in ("indptr", "source", "edge")]
    alike = all(a.dtype == b.dtype and a.equal(b) for a, b in parts)
    return alike and one.rows_in == other.rows_in


@needs_sampler
@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]),
    st.lists(st.integers(1, 12) | st.integers(30, 90), min_size=1, max_size=3),
    SEEDS,
    WORD,
)
def test_layers_are_those_of_the_compiled_sampler(
    graph: int, share: float, fanouts: list[int], seed: int, step: int
) -> None:
    """Mini-batch after mini-batch, with and without some edges, of nodes with no edges and many."""
    indptr, columns = make_csr(90, graph % 7, mean=(2.0, 8.0, 40.0)[graph % 3])
    draw = np.random.default_rng(graph)
    compiled, ours = Sampler(indptr, columns), TorchSampler(indptr, columns)
    for left in (None, share, None):
        out = (
            None
            if left is None
            else torch.from_numpy((draw.random(len(columns)) < left).nonzero()[0])
        )
        seeds = torch.from_numpy(draw.choice(90, draw.integers(0, 40), replace=False))
        compiled.begin(seeds, out)
        ours.begin(seeds, out)
        assert ours.nodes.equal(compiled.nodes)
        for number, fanout in enumerate(fanouts):
            layer = Layer(fanout, seed, step, number)
            wanted, found = compiled.draw(layer), ours.draw(layer)
            assert same(found, wanted)
            assert ours.nodes.equal(compiled.nodes)
            assert ours.targets(found).equal(compiled.targets(wanted))


def star(degree: int) -> tuple[Tensor, Tensor]:
    """Node 0 has so many neighbours, the others have it."""
    ends = torch.cat((torch.tensor([0]), torch.arange(degree, 2 * degree + 1)))
    return ends, torch.cat((torch.arange(1, degree + 1), torch.zeros(degree))).int()
